"""Requests to move a cursor. Only the owner of a log writes its cursors, so whoever wants one moved stores a request
with the log: its owner carries it out when it hears of it, and whoever owns the log next does so before anybody
consumes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple, Self

import trio

from metadata import keys, scripts
from metadata.complaints import complain
from metadata.errors import OutcomeUnknown
from metadata.log_places import LogPlace
from metadata.store import TopicStore, operation_id
from metadata.stored_values import number

log = logging.getLogger(__name__)

# What begins the fields of a log's state that hold requests; the subscription follows.
_FIELD: Final = b"request:"
_END: Final = b"end"


class CursorRequest(NamedTuple):
    op: str
    to_ms: int | None  # to the first message that was published then or later; None: to the end
    identity: str = ""  # of the registration whose cursor is meant

    @property
    def entry(self) -> bytes:
        return f"{self.op} {_END.decode() if self.to_ms is None else self.to_ms} {self.identity}".encode().rstrip()

    @classmethod
    def parse(cls, entry: bytes) -> Self:
        """Raises ValueError."""
        op, _, rest = entry.partition(b" ")
        target, _, identity = rest.partition(b" ")
        return cls(op.decode(), None if target == _END else number(target), identity.decode())


def requests_in(fields: Mapping[bytes, bytes]) -> dict[str, CursorRequest]:
    """The requests among the fields of a log's state, by subscription; what cannot be read asks for nothing."""
    requests = {}
    for field, entry in fields.items():
        if field.startswith(_FIELD):
            try:
                requests[field.removeprefix(_FIELD).decode()] = CursorRequest.parse(entry)
            except ValueError as error:
                complain(log, "a request to move a cursor, %r, cannot be read: %s", entry[:64], error)
    return requests


class PendingMove(NamedTuple):
    """A request that stands with a log until it is carried out."""

    place: LogPlace
    subscription: str
    op: str


class CursorRequests:
    def __init__(self, store: TopicStore) -> None:
        self._store = store

    async def ask(
        self, place: LogPlace, incarnation: str, subscription: str, to_ms: int | None, identity: str = ""
    ) -> PendingMove | None:
        """Store a request for the cursor of this registration; None where the log is gone."""
        store = self._store
        request = CursorRequest(operation_id(), to_ms, identity)
        pending = PendingMove(place, subscription, request.op)
        give_up_at = trio.current_time() + store.timeouts.patience
        while True:
            try:
                outcome = await store.commands.script(
                    place.slot,
                    scripts.REQUEST_CURSOR,
                    [place.key, keys.changes_key(place.bucket)],
                    [
                        incarnation,
                        subscription,
                        request.entry,
                        place.path,
                        "classic" if place.segment_id is None else "cursor",
                        store.change_log_length,
                        request.op,
                    ],
                )
            except OutcomeUnknown:
                # Looked up before it is sent again: what was carried out meanwhile must not be a second time.
                if await store.is_logged(place.bucket, request.op):
                    return pending
                if trio.current_time() > give_up_at:
                    raise
                continue
            return pending if outcome == b"done" else None
