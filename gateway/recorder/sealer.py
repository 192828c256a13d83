"""Has complete logs turned into Parquet, one after another in their order, each by a child process.

A log that cannot be sealed now goes to the end of the line, so that it costs no other.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from gateway.recorder.losses import Losses
from metadata.traces.errors import TraceError
from metadata.traces.manifest import read_manifest, write_manifest
from protocol.backoff import Backoff

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0


class Sealer:
    """Times are the caller's. The manifest is written here only while no child does it."""

    def __init__(self, directory: Path, logs: Iterable[Path]) -> None:
        self.failures = 0
        self._directory = directory
        self._logs = deque(logs)
        self._told: set[Path] = set()  # of these it was said that they could not be sealed
        self._child: subprocess.Popen[bytes] | None = None
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._not_before = 0.0

    @property
    def busy(self) -> bool:
        return self._child is not None or bool(self._logs)

    def add(self, part: Path) -> None:
        self._logs.append(part)

    def go_on(self, now: float, losses: Losses) -> None:
        """See whether the child is done, and start the next; `losses` is what the manifest is to say."""
        if self._child is not None and self._child.poll() is not None:
            self._collect(now)
        if self._child is None and self._logs and now >= self._not_before:
            self._note(losses)
            self._start()

    def finish(self, losses: Losses, limit: float) -> None:
        """Seal what is left, for so many seconds in all; what cannot be sealed now, the next recorder seals."""
        until = time.monotonic() + limit
        for _ in range(len(self._logs)):
            if self._child is None:
                self._note(losses)
                self._start()
            assert self._child is not None
            try:
                self._child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
            self._collect(0.0)
            if time.monotonic() >= until:
                break
        self._note(losses)
        if self._logs:
            log.warning("%d parts are left unsealed: run vela trace seal %s", len(self._logs), self._directory)

    def _start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-P", "-m", "metadata.traces.sealing", str(self._logs[0].absolute()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def _collect(self, now: float) -> None:
        assert self._child is not None
        remark, said = (text.decode(errors="replace").strip() for text in self._child.communicate())
        part = self._logs.popleft()
        if self._child.returncode == 0:
            self._backoff.reset()
            self._told.discard(part)
            if remark:
                log.warning("%s", remark)
        else:
            self.failures += 1
            self._logs.append(part)
            if part not in self._told:
                self._told.add(part)
                why = said.rpartition("\n")[2] or f"status {self._child.returncode}"
                log.error("%s could not be sealed and will be tried again: %s", part.name, why)
            self._not_before = now + self._backoff.next()
        self._child = None

    def _note(self, losses: Losses) -> None:
        try:
            manifest = read_manifest(self._directory)
            if (manifest.dropped, manifest.values_missing) != losses:
                changed = msgspec.structs.replace(manifest, dropped=losses.changes, values_missing=losses.values)
                write_manifest(self._directory, changed)
        except (TraceError, OSError) as error:
            # The child will meet the same, and that is told.
            log.debug("the manifest could not be brought up to date: %s", error)
