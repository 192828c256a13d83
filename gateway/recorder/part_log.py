"""The log of the part that is being written, as a file: it grows by whole pieces only."""

from __future__ import annotations

import os
from pathlib import Path

from metadata.traces.log_files import MAGIC
from metadata.traces.manifest import sync_directory


class PartLog:
    """Raises OSError. After a failed `append` the log is what it was before, once the next one succeeds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._torn = False
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self.append(MAGIC)
            sync_directory(path.parent)
        except OSError:
            # Without its beginning it could not be told from damage.
            self.close()
            path.unlink()
            raise

    def append(self, piece: bytes) -> None:
        if self._torn:
            os.ftruncate(self._handle, self.size)
            self._torn = False
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._write(rest) :]
        except OSError:
            self._torn = True
            raise
        self.size += len(piece)

    def sync(self) -> None:
        os.fdatasync(self._handle)

    def close(self) -> None:
        os.close(self._handle)

    def _write(self, piece: memoryview) -> int:
        return os.write(self._handle, piece)
