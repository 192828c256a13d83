"""How many replicas have what was written on a connection, asked once for all who want to know at that moment.

While a server waits for its replicas it takes no further command from that connection. If every writer asked by itself,
each would wait for all the others, and for their time limits where a replica is down.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import hiredis
import trio

from metadata.errors import OutcomeUnknown
from metadata.link import Link, LinkLost


class _Round:
    """One question, and what came of it."""

    __slots__ = ("abandoned", "answer", "failure", "replicas", "seconds")

    def __init__(self) -> None:
        self.replicas = 0
        self.seconds = 0.0
        self.answer: int | None = None
        self.failure: str | None = None
        self.abandoned = False  # who asked was cancelled: the others have to ask again

    @property
    def settled(self) -> bool:
        return self.answer is not None or self.failure is not None or self.abandoned


class _Line:
    """Of one connection: whether a question is out, and the one that is asked after it."""

    __slots__ = ("asking", "freed", "next")

    def __init__(self) -> None:
        self.asking = False
        self.freed = trio.Event()
        self.next = _Round()


class Replication:
    def __init__(self, *, longest: float) -> None:
        """`longest` is what a question may take at most: a server that waits says nothing, and must not seem dead."""
        self._longest = longest
        self._lines: WeakKeyDictionary[Link, _Line] = WeakKeyDictionary()

    async def confirmed(self, link: Link, replicas: int, seconds: float) -> int:
        """How many replicas have everything that was answered on this connection so far: `replicas`, or fewer in time.

        OutcomeUnknown if the connection is lost: on another one the server would not know what is meant.
        """
        line = self._lines.setdefault(link, _Line())
        while True:
            joined = line.next
            joined.replicas = max(joined.replicas, replicas)
            joined.seconds = max(joined.seconds, min(seconds, self._longest))
            while not joined.settled:
                if line.asking:
                    await line.freed.wait()
                else:
                    await _ask(link, line)
            if joined.failure is not None:
                raise OutcomeUnknown(f"It is not known how many replicas have what was written: {joined.failure}.")
            if joined.answer is not None:
                return joined.answer


async def _ask(link: Link, line: _Line) -> None:
    asked, line.next = line.next, _Round()
    line.asking = True
    try:
        # Zero would mean for ever.
        answer = await link.call("WAIT", asked.replicas, max(1, round(asked.seconds * 1000)))
        if isinstance(answer, hiredis.ReplyError):
            asked.failure = str(answer)
        else:
            asked.answer = int(answer)
    except LinkLost as error:
        asked.failure = str(error)
    finally:
        asked.abandoned = not asked.settled
        line.asking = False
        line.freed.set()
        line.freed = trio.Event()
