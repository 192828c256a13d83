"""The recorder's thread: takes what the loop has put, makes events of it, and sees that they reach the disk in time.

From the reading of an entry until it is in the file pass the time for which it is held and one round; until it is on
the disk, that between two syncs. Together they stay below a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final, cast

from gateway.recorder.clock import Clock
from gateway.recorder.holding import Holding
from gateway.recorder.intake import Base, BaseEnd, Entries, Gap, Intake, Item, Value
from gateway.recorder.losses import Losses
from gateway.recorder.opening import OpenTrace
from gateway.recorder.part_log import PartLog
from gateway.recorder.rows import Rows
from gateway.recorder.sealer import Sealer
from metadata.traces.directories import log_name
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.log_files import encode_together
from protocol.backoff import Backoff

log = logging.getLogger(__name__)

# How long a change waits for its record to be read back. Watched ones are read within their window, others after what
# the tap of values allows.
HOLD: Final = 0.4
# Between two rounds while there is something to do: rare enough to work in batches, often enough for the promise above.
_ROUND: Final = 0.1
_SYNC_INTERVAL: Final = 0.4
# How soon it is seen that a log is sealed; nobody waits for it.
_SEAL_ROUND: Final = 1.0
# Events handled before the loop may have the interpreter, which it otherwise gets only after 5 ms, and for how long.
_SLICE: Final = 200
# Events that are written together.
_PIECE: Final = 512
_BREATH: Final = 0.0002
# A disk that is full for a while; the queue holds what comes in the meantime.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
# What sealing the last parts may take when the server stops; what is left, the next recorder seals.
_SEAL_LIMIT: Final = 30.0

# Kinds that have a record to be read back.
_WITH_RECORD: Final = frozenset({str(Kind.CREATED), str(Kind.CHANGED)})
_DELETED: Final = str(Kind.DELETED)


@dataclass(frozen=True, slots=True)
class PartLimits:
    """When a part is complete."""

    size: int
    seconds: float


@dataclass(slots=True)
class WriterCounters:
    events: int = 0  # appended to a log
    errors: int = 0  # attempts to write or to sync that failed


class Writer:
    def __init__(
        self,
        trace: OpenTrace,
        intake: Intake,
        clock: Clock,
        limits: PartLimits,
        *,
        losses: Callable[[], Losses],
        on_doubt: Callable[[], None],
        open_log: Callable[[Path], PartLog] = PartLog,
    ) -> None:
        """`losses` says what did not fit in this run; `on_doubt` is called when what was written may be lost."""
        self.counters = WriterCounters()
        self._trace = trace
        self._intake = intake
        self._clock = clock
        self._limits = limits
        self._losses = losses
        self._on_doubt = on_doubt
        self._open_log = open_log
        self._rows = Rows(
            run=trace.run,
            next_seq=trace.next_seq,
            clock=clock,
            values=trace.values,
            pseudonyms=trace.pseudonyms,
        )
        self._holding = Holding()
        self._sealer = Sealer(trace.directory, trace.unsealed)
        self._ready: list[TraceEvent] = []  # not written yet
        self._log: PartLog | None = None
        self._log_since = 0.0
        self._next_part = trace.next_part
        self._synced_at: float | None = None  # None: everything is on the disk
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)

    def run(self) -> None:
        """The thread: until the intake is closed, and then until all is written and sealed, or cannot be."""
        while not self._intake.closed:
            self._intake.sleep(self._patience())
            if not self._intake.closed:
                time.sleep(_ROUND)
            self._attempt()
        self._holding_no_longer()
        self._finish()

    def _attempt(self) -> None:
        """One round; nothing that goes wrong in it ends the recording."""
        try:
            self._round()
        except OSError as error:
            self._failed(f"the trace in {self._trace.directory} cannot be written: {error.strerror or error}")
        except Exception:
            log.exception("recording failed and will be tried again")
            # What was taken from the queue and not written is lost.
            self._on_doubt()
            self._failed(None)

    def _failed(self, why: str | None) -> None:
        self.counters.errors += 1
        if self._backoff.fresh and why is not None:
            log.error("%s; changes wait for it, and are dropped when they are too many", why)
        pause = self._backoff.next()
        while pause > 0 and not self._intake.closed:
            time.sleep(min(_ROUND, pause))
            pause -= _ROUND

    def _round(self) -> None:
        # What could not be written comes first, and nothing more is taken meanwhile: that is what fills the queue.
        self._write()
        while items := self._intake.take(_SLICE):
            self._take_in(items)
            self._release(self._clock.now())
            if len(self._ready) >= _PIECE:
                self._write()
            time.sleep(_BREATH)
        self._release(self._clock.now())
        self._write()
        self._sync_if_due()
        self._rotate_if_due()
        self._sealer.go_on(self._clock.now(), self._trace.losses.and_also(self._losses()))
        if not self._backoff.fresh:
            log.info("the trace in %s is written again", self._trace.directory)
            self._backoff.reset()

    def _patience(self) -> float | None:
        """How long nothing has to be done if nothing comes."""
        if self._holding or self._ready or self._synced_at is not None:
            return 0.0
        if self._sealer.busy:
            return _SEAL_ROUND
        if self._log is not None:
            return max(0.0, self._log_since + self._limits.seconds - self._clock.now())
        return None

    def _take_in(self, items: Iterable[Item]) -> None:
        for kind, run in groupby(items, type):
            if kind is Entries:
                self._take_changes(cast(Iterator[Entries], run))
            elif kind is Value:
                for value in cast(Iterator[Value], run):
                    self._holding.supply(value.path, value.incarnation, value.version, self._rows.value(value.value))
            else:
                for item in run:
                    for event in self._rows.of_recorder(cast(Gap | Base | BaseEnd, item)):
                        self._holding.add(event)

    def _take_changes(self, items: Iterator[Entries]) -> None:
        holding = self._holding
        for event, path, read in self._rows.of_entries(items):
            if self._trace.values and event.kind in _WITH_RECORD:
                holding.add_waiting(event, path, read + HOLD)
            else:
                if event.kind == _DELETED:
                    holding.give_up(path)
                holding.add(event)

    def _release(self, now: float) -> None:
        self._ready += self._holding.released(now)

    def _write(self) -> None:
        if not self._ready:
            return
        if self._log is None:
            self._log = self._open_log(self._trace.directory / log_name(self._next_part))
            self._next_part += 1
            self._log_since = self._clock.now()
        self._log.append(encode_together(self._ready))
        self.counters.events += len(self._ready)
        self._ready.clear()
        if self._synced_at is None:
            self._synced_at = self._clock.now()

    def _sync_if_due(self) -> None:
        if self._synced_at is not None and self._clock.now() >= self._synced_at + _SYNC_INTERVAL - _ROUND:
            self._sync()

    def _sync(self) -> None:
        assert self._log is not None
        self._synced_at = None
        try:
            self._log.sync()
        except OSError:
            # What the kernel could not write, it has forgotten: asking again would be answered with a success.
            self._leave_log()
            self._on_doubt()
            raise

    def _rotate_if_due(self) -> None:
        if self._log is None:
            return
        if self._log.size >= self._limits.size or self._clock.now() >= self._log_since + self._limits.seconds:
            if self._synced_at is not None:
                self._sync()
            self._leave_log()

    def _leave_log(self) -> None:
        assert self._log is not None
        self._log.close()
        self._sealer.add(self._log.path)
        self._log = None
        self._synced_at = None

    def _holding_no_longer(self) -> None:
        """At the end nothing more is read back."""
        self._attempt()
        self._release(float("inf"))

    def _finish(self) -> None:
        try:
            self._write()
            if self._log is not None:
                if self._synced_at is not None:
                    self._sync()
                self._leave_log()
            self._sealer.finish(self._trace.losses.and_also(self._losses()), _SEAL_LIMIT)
        except OSError as error:
            self.counters.errors += 1
            log.error("the end of the trace in %s was not written: %s", self._trace.directory, error.strerror or error)
