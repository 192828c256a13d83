"""A topic's DAG as the shared tail of SCALABLE_TOPIC_UPDATE frames: encoded once per content."""

from __future__ import annotations

from collections.abc import Callable

from layout.layouts import Layout
from layout.segments import Segment
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from sessions.splice import tagged_length

_DAG_FIELD = 2
_RESOLVED_NAME_FIELD = 5


def encode_tail(
    layout: Layout, *, name: str, owner_url: Callable[[Segment], str] | None, controller_url: str | None
) -> bytes:
    """The DAG and the resolved name: all segments in record order, and where each active one is served.

    Without URLs for a classic topic: nobody leads it, and clients look up its logs by their names.
    """
    dag = api.ScalableTopicDAG(epoch=layout.epoch)
    for segment in layout.segments.values():
        wire = dag.segments.add(
            segment_id=segment.segment_id,
            hash_start=segment.range.start,
            hash_end=segment.range.end,
            state=api.ACTIVE if segment.is_active else api.SEALED,
            created_at_epoch=segment.created_at_epoch,
            created_at_ms=max(0, segment.created_at_ms),
        )
        # Assigned only where there is something: this runs for every segment at every change.
        if segment.parent_ids:
            wire.parent_ids.extend(segment.parent_ids)
        if segment.child_ids:
            wire.child_ids.extend(segment.child_ids)
        if segment.entry_bucket_splits:
            wire.entry_bucket_splits.extend(segment.entry_bucket_splits)
        if segment.sealed_at_epoch >= 0:
            wire.sealed_at_epoch = segment.sealed_at_epoch
        if segment.sealed_at_ms >= 0:
            wire.sealed_at_ms = segment.sealed_at_ms
        if segment.legacy_topic_name:
            wire.legacy_topic_name = segment.legacy_topic_name
    if owner_url is not None:
        for segment in layout.active:
            _place(dag.segment_brokers.add(segment_id=segment.segment_id), owner_url(segment))
    if controller_url is not None:
        if _is_secured(controller_url):
            dag.controller_broker_url_tls = controller_url
        else:
            dag.controller_broker_url = controller_url
    return _tail(dag, name)


def with_brokers(tail: bytes, broker_url: Callable[[api.SegmentInfoProto], str]) -> bytes:
    """The same DAG with its active segments where they are served now; the very same bytes if that is where they were.

    One without such places, of a classic topic, stays so.
    """
    update = api.CommandScalableTopicUpdate()
    update.MergeFromString(tail)  # it has no session id, without which a whole update would not be parsed
    dag = update.dag
    brokers = {broker.segment_id: broker for broker in dag.segment_brokers}
    is_moved = False
    for segment in dag.segments if brokers else ():
        broker = brokers.get(segment.segment_id)
        if broker is not None and (broker.broker_url or broker.broker_url_tls) != (url := broker_url(segment)):
            _place(broker, url)
            is_moved = True
    return _tail(dag, update.resolved_topic_name) if is_moved else tail


def _place(broker: api.SegmentBrokerAddress, url: str) -> None:
    """Say where a segment is served, in the field that a client of that kind looks into, and in no other."""
    broker.ClearField("broker_url_tls")
    if _is_secured(url):
        # Clients take the first field for an address without TLS; it has to be there, so it is empty.
        broker.broker_url = ""
        broker.broker_url_tls = url
    else:
        broker.broker_url = url


def _is_secured(url: str) -> bool:
    return url.startswith("pulsar+ssl:")


def _tail(dag: api.ScalableTopicDAG, name: str) -> bytes:
    encoded, resolved = dag.SerializeToString(), name.encode()
    return b"".join(
        (
            tagged_length(_DAG_FIELD, len(encoded)),
            encoded,
            tagged_length(_RESOLVED_NAME_FIELD, len(resolved)),
            resolved,
        )
    )


def error_frame(session_id: int, server_error: int, message: str) -> bytes:
    """The last word on a watch. Clients insist on a text."""
    command = api.BaseCommand(type=api.BaseCommand.SCALABLE_TOPIC_UPDATE)
    update = command.scalableTopicUpdate
    update.session_id = session_id
    update.error = api.ServerError.ValueType(server_error)
    update.message = message or "unknown reason"
    return encode(command)
