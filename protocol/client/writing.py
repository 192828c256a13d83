"""What waits to be written to a connection: whole frames, in order, sent together by one task."""

from __future__ import annotations

from collections import deque

import trio

# So much is joined for one call of the system: more saves nothing, and would be copied once more.
CHUNK_SIZE = 256 * 1024


class Chunk:
    """Frames that are written together, as those who handed them over see it."""

    __slots__ = ("_over", "frames", "is_written", "size")

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.size = 0
        self.is_written = False
        self._over = trio.Event()

    async def wait(self) -> None:
        """Until it is written, or never will be."""
        await self._over.wait()

    def end(self, *, is_written: bool) -> None:
        self.is_written = is_written
        self._over.set()


class FrameWriter:
    """Takes frames from any task at any time, also from one that is about to be cancelled.

    Writing by a task of its own keeps frames whole: a caller who is cancelled stops waiting, and what it has handed
    over is written to the end all the same. Nothing here bounds what waits; those who put frames without waiting do.
    """

    __slots__ = ("_chunks", "_socket", "_wake")

    def __init__(self, socket: trio.socket.SocketType) -> None:
        self._socket = socket
        self._chunks: deque[Chunk] = deque()
        self._wake = trio.Event()

    def put(self, frame: bytes) -> Chunk:
        """Queue a frame; what is returned says when it is written."""
        if not self._chunks or self._chunks[-1].size >= CHUNK_SIZE:
            self._chunks.append(Chunk())
        chunk = self._chunks[-1]
        chunk.frames.append(frame)
        chunk.size += len(frame)
        self._wake.set()
        return chunk

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._chunks:
                chunk = self._chunks.popleft()
                try:
                    await self._write(b"".join(chunk.frames))
                except BaseException:
                    chunk.end(is_written=False)
                    raise
                chunk.end(is_written=True)

    def end(self) -> None:
        """Nothing more will be written: wake those who wait for it."""
        while self._chunks:
            self._chunks.popleft().end(is_written=False)

    async def _write(self, data: bytes) -> None:
        sent = await self._socket.send(data)
        if sent < len(data):
            rest = memoryview(data)
            while sent < len(data):
                sent += await self._socket.send(rest[sent:])
