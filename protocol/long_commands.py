"""Commands with long lists: cut before they are parsed, because a list of a million short messages takes seconds.

Ids of messages come in parts, each of which is a command of its own: to acknowledge them together or one part after
the other is the same. Any other list is cut to one more than any bound: whoever checks sees that there are too many,
and nobody has made objects of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from protocol.wire import pulsar_api_pb2 as api

# From this size on it is worth looking. What clients say is shorter, but for schemas and for many ids.
LONG_COMMAND: Final = 16 * 1024
# Ids of one part, and about how many bytes of them: some milliseconds of work.
IDS_PER_PART: Final = 1_000
_PART_BYTES: Final = 64 * 1024
# Entries of any other list. All bounds are below it.
MOST_LISTED: Final = 10_000
# An id with the acknowledgements of the largest batch, 100,000 messages, takes 18 KB. A longer one is nobody's.
_LONGEST_ID: Final = 32 * 1024
_NOBODYS: Final = api.MessageIdData(ledgerId=2**64 - 1, entryId=0).SerializeToString()

_ID_LISTS: Final = {
    api.BaseCommand.ACK: ("ack", "message_id"),
    api.BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: ("redeliverUnacknowledgedMessages", "message_ids"),
}


def cut(data: bytes) -> Iterator[bytes]:
    """A command as one or several that are no longer than they should be. Raises DecodeError for what is none."""
    whole: Any = _Shallow.FromString(data)
    field, ids = _ID_LISTS.get(whole.type, ("", ""))
    if field and whole.HasField(field) and len(getattr(getattr(whole, field), ids)) > 1:
        return _parts(whole, field, ids)
    return iter([whole.SerializeToString() if _shorten(whole) else data])


def _parts(whole: Any, field: str, ids: str) -> Iterator[bytes]:
    listed = getattr(getattr(whole, field), ids)
    head = _Shallow(type=whole.type)
    for descriptor, value in getattr(whole, field).ListFields():
        # Only the numbers: nothing else of these commands means anything to a server.
        if descriptor.message_type is None and isinstance(value, int):
            setattr(getattr(head, field), descriptor.name, value)
    # Of a cumulative acknowledgement the first id counts.
    is_cumulative = field == "ack" and whole.ack.ack_type == api.CommandAck.Cumulative
    end = min(len(listed), IDS_PER_PART) if is_cumulative else len(listed)
    position = 0
    while position < end:
        part = [it if len(it) <= _LONGEST_ID else _NOBODYS for it in listed[position : position + IDS_PER_PART]]
        size = count = 0
        while count < len(part) and size < _PART_BYTES:
            size += len(part[count])
            count += 1
        position += count
        command: Any = _Shallow()
        command.CopyFrom(head)
        request = getattr(command, field)
        getattr(request, ids).extend(part[:count])
        if position < end and field == "ack":
            request.ClearField("request_id")  # the last part is answered, for all of them
        yield command.SerializeToString()


def _shorten(message: Any) -> bool:
    """Whether something was too long."""
    found = False
    for descriptor, value in message.ListFields():
        if descriptor.is_repeated:
            if len(value) > MOST_LISTED:
                del value[MOST_LISTED + 1 :]
                found = True
        elif descriptor.message_type is not None:
            found = _shorten(value) or found
    return found


def _shallow_class() -> type[Message]:
    """BaseCommand once more, with the messages of a list as their bytes: to count them costs little."""
    file = FileDescriptorProto()
    api.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        for field in message.field:
            is_list = field.label == FieldDescriptorProto.LABEL_REPEATED
            if is_list and field.type == FieldDescriptorProto.TYPE_MESSAGE:
                field.type = FieldDescriptorProto.TYPE_BYTES
                field.ClearField("type_name")
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(api.BaseCommand.DESCRIPTOR.full_name))


_Shallow = _shallow_class()
