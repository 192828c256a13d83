"""The Lua scripts: everything that changes more than one key does it in one of these.

Scripts get bytes and return bytes, check everything before their first write, and know their operation id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from metadata.link import Command


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    source: str
    sha: str

    def command(self, keys: Sequence[bytes], args: Sequence[bytes | str | int]) -> Command:
        return ("EVALSHA", self.sha, len(keys), *keys, *args)

    @staticmethod
    def of_command(command: Command) -> Script:
        """The script that an EVALSHA command names."""
        return _BY_SHA[str(command[1])]


def _load(name: str) -> Script:
    source = resources.files(__name__).joinpath(f"{name}.lua").read_text("utf-8")
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


CREATE_TOPIC = _load("create_topic")
REPLACE_TOPIC = _load("replace_topic")
DELETE_TOPIC = _load("delete_topic")
CREATE_NAMESPACE = _load("create_namespace")
REPLACE_NAMESPACE = _load("replace_namespace")
CLOSE_NAMESPACE = _load("close_namespace")
RENEW_LEASE = _load("renew_lease")
RELEASE_LEASE = _load("release_lease")
TAKE_LEAD = _load("take_lead")
DROP_LEAD = _load("drop_lead")
ATTACH_CONSUMER = _load("attach_consumer")
DETACH_CONSUMER = _load("detach_consumer")
ASSIGN = _load("assign")
END_GROUP = _load("end_group")
CREATE_SUBSCRIPTION = _load("create_subscription")
DELETE_SUBSCRIPTION = _load("delete_subscription")
COLLECT_GARBAGE = _load("collect_garbage")
REGISTER_SCHEMA = _load("register_schema")
DELETE_SCHEMAS = _load("delete_schemas")
CREATE_CLASSIC = _load("create_classic")
DELETE_CLASSIC = _load("delete_classic")
CREATE_PARTITIONED = _load("create_partitioned")
REPLACE_PARTITIONED = _load("replace_partitioned")
DELETE_PARTITIONED = _load("delete_partitioned")
SEAL_CLASSIC = _load("seal_classic")
MIGRATE_TOPIC = _load("migrate_topic")
CLAIM_SEGMENT = _load("claim_segment")
APPEND_ENTRIES = _load("append_entries")
CONFIRM_CLAIM = _load("confirm_claim")
SAVE_CURSORS = _load("save_cursors")
TELL_DRAINED = _load("tell_drained")
REQUEST_CURSOR = _load("request_cursor")
FORGET_PRODUCERS = _load("forget_producers")
SET_TOPIC_EPOCH = _load("set_topic_epoch")
TELL_FIGURES = _load("tell_figures")
TELL_HOLDER = _load("tell_holder")
TRIM_SEGMENT = _load("trim_segment")
RELEASE_SEGMENT = _load("release_segment")
READ_ENTRIES = _load("read_entries")
FIND_TIME = _load("find_time")
FIND_PUBLISHED = _load("find_published")
ALL = (
    CREATE_TOPIC,
    REPLACE_TOPIC,
    DELETE_TOPIC,
    CREATE_NAMESPACE,
    REPLACE_NAMESPACE,
    CLOSE_NAMESPACE,
    RENEW_LEASE,
    RELEASE_LEASE,
    TAKE_LEAD,
    DROP_LEAD,
    ATTACH_CONSUMER,
    DETACH_CONSUMER,
    ASSIGN,
    END_GROUP,
    CREATE_SUBSCRIPTION,
    DELETE_SUBSCRIPTION,
    COLLECT_GARBAGE,
    REGISTER_SCHEMA,
    DELETE_SCHEMAS,
    CREATE_CLASSIC,
    DELETE_CLASSIC,
    CREATE_PARTITIONED,
    REPLACE_PARTITIONED,
    DELETE_PARTITIONED,
    SEAL_CLASSIC,
    MIGRATE_TOPIC,
    CLAIM_SEGMENT,
    APPEND_ENTRIES,
    CONFIRM_CLAIM,
    SAVE_CURSORS,
    TELL_DRAINED,
    REQUEST_CURSOR,
    FORGET_PRODUCERS,
    SET_TOPIC_EPOCH,
    TELL_FIGURES,
    TELL_HOLDER,
    TRIM_SEGMENT,
    RELEASE_SEGMENT,
    READ_ENTRIES,
    FIND_TIME,
    FIND_PUBLISHED,
)
# Those that change a classic topic, and those of them that change nothing else.
OF_CLASSIC = frozenset(
    {
        CREATE_CLASSIC,
        DELETE_CLASSIC,
        CREATE_PARTITIONED,
        REPLACE_PARTITIONED,
        DELETE_PARTITIONED,
        SEAL_CLASSIC,
        MIGRATE_TOPIC,
    }
)
OF_CLASSIC_ONLY = OF_CLASSIC - {MIGRATE_TOPIC}
OF_BULK = (COLLECT_GARBAGE, READ_ENTRIES, FIND_TIME, FIND_PUBLISHED)
_BY_SHA = {script.sha: script for script in ALL}
