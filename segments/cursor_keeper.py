"""Writes the cursors of one log to the store: all that have changed in one call, one call at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from metadata.complaints import note_waiting
from metadata.errors import LogFenced, LogMissing, StoreError
from metadata.log_states import Claim
from metadata.segment_logs import SegmentLogs
from metadata.tasks import Tasks
from protocol.backoff import Backoff

log = logging.getLogger(__name__)

# Between two writes, unless somebody waits for one: acknowledgements come all the time.
_PAUSE: Final = 0.02
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

Encode = Callable[[], bytes | None]  # None: the cursor goes
Told = Callable[[bool], None]  # whether it was written, or will not be any more


def _no_claim() -> Claim | None:
    return None


def _ignore(error: StoreError) -> None:
    """For a log that has ended."""


class CursorKeeper:
    def __init__(
        self,
        logs: SegmentLogs,
        claim: Callable[[], Claim | None],
        *,
        nursery: Tasks,
        lost: Callable[[StoreError], None],
    ) -> None:
        """`claim` is asked before each write, and gives None while it is renewed; `lost` is told when it has ended."""
        self._logs = logs
        self._claim = claim
        self._nursery = nursery
        self._lost = lost
        self._dirty: dict[str, Encode] = {}
        self._told: list[Told] = []
        self._carried_out: dict[str, bytes] = {}
        self._drained = False
        self._running = False
        self._hurry = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._ended = False

    def mark(
        self,
        subscription: str,
        encode: Encode,
        *,
        told: Told | None = None,
        carried_out: bytes | None = None,
        drained: bool = False,
    ) -> None:
        """A cursor has changed; `told` is called once, `drained` lets the topic's leader know.

        `carried_out` is the request that moved it, which goes when the cursor is written.
        """
        if self._ended:
            if told is not None:
                told(False)
            return
        self._dirty[subscription] = encode
        if carried_out is not None:
            self._carried_out[subscription] = carried_out
        if told is not None:
            self._told.append(told)
        self._drained = self._drained or drained
        if told is not None or drained:
            self._hurry.set()
        if not self._running:
            self._running = True
            self._idle = trio.Event()
            self._nursery.start_soon(self._run)

    async def flushed(self) -> None:
        """Return when everything marked so far is written, or cannot be any more."""
        self._hurry.set()
        await self._idle.wait()

    def end(self) -> None:
        """Write nothing more, because it would be refused."""
        self._ended = True
        self._dirty.clear()
        self._carried_out.clear()
        told, self._told = self._told, []
        self._hurry.set()
        for call in told:
            call(False)
        if not self._running:
            # They are the log's, which holds this.
            self._claim, self._lost = _no_claim, _ignore

    async def _run(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        told: list[Told] = []
        try:
            while self._dirty and not self._ended:
                claim = self._claim()
                if claim is None:
                    await trio.sleep(backoff.next())
                    continue
                dirty, self._dirty = self._dirty, {}
                told, self._told = self._told, []
                carried_out, self._carried_out = self._carried_out, {}
                drained, self._drained = self._drained, False
                self._hurry = trio.Event()
                try:
                    await self._logs.save(
                        claim,
                        {name: encode() for name, encode in dirty.items()},
                        carried_out=carried_out,
                        drained=drained,
                    )
                except StoreError as error:
                    # A claim that was renewed meanwhile, or just now, refuses what was sent under the one before.
                    if isinstance(error, LogFenced | LogMissing) and claim == self._claim():
                        self._told = [*told, *self._told]
                        self._lose(error)
                        return
                    note_waiting(log, error, "the cursors of %s wait for the store", claim.place.name)
                    self._dirty = {**dirty, **self._dirty}
                    self._carried_out = {**carried_out, **self._carried_out}
                    self._told = [*told, *self._told]
                    self._drained = self._drained or drained
                    await trio.sleep(backoff.next())
                    continue
                backoff.reset()
                written, told = told, []
                for call in written:
                    call(True)
                if not self._hurry.is_set():
                    with trio.move_on_after(_PAUSE):
                        await self._hurry.wait()
        except Exception:
            log.exception("the cursors of a log cannot be written")
            self._told = [*told, *self._told]
            self._lose(StoreError("Its cursors cannot be written, which is a fault of the server: its log has more."))
        finally:
            self._running = False
            if self._ended:
                self.end()  # once more, for what was under way when it was said
            self._idle.set()

    def _lose(self, error: StoreError) -> None:
        if not self._ended:
            self._lost(error)
            self.end()
