"""Whether the node that leads a topic answers, asked before somebody is sent there.

A node that was killed stays the leader of its topics until its lease is over, and a redirect to it leads nowhere. So
its address is asked for a sign of life first: once for all who wait, and not again for a moment.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import trio

# As long as a client is kept waiting for a node that is silent. A busy one answers within it.
_LIMIT: Final = 2.0
# How long an answer serves others: so many requests for a topic cost its leader one question per second.
_FRESH: Final = 1.0
# Nodes of one store; more addresses than this are asked every time.
_REMEMBERED: Final = 256
_PORTS: Final = {"http": 80, "https": 443}


class _Answer:
    def __init__(self) -> None:
        self.done = trio.Event()
        self.is_there = True
        self.fresh_until = float("inf")


class LeaderProbe:
    def __init__(self, *, limit: float = _LIMIT) -> None:
        self._limit = limit
        self._answers: dict[str, _Answer] = {}
        self.asked = 0

    async def answers(self, http_url: str) -> bool:
        """Whether a node answers at its HTTP address. What is no such address is for the client to find out."""
        now = trio.current_time()
        answer = self._answers.get(http_url)
        if answer is None or answer.fresh_until < now:
            answer = _Answer()
            self._remember(http_url, answer, now)
            try:
                answer.is_there = await self._ask(http_url)
            finally:
                answer.fresh_until = trio.current_time() + _FRESH
                answer.done.set()
        await answer.done.wait()
        return answer.is_there

    def _remember(self, http_url: str, answer: _Answer, now: float) -> None:
        if len(self._answers) >= _REMEMBERED:
            for url in [url for url, old in self._answers.items() if old.fresh_until < now]:
                del self._answers[url]
        if len(self._answers) < _REMEMBERED:
            self._answers[http_url] = answer

    async def _ask(self, http_url: str) -> bool:
        try:
            parts = urlsplit(http_url)
            host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme)
        except ValueError:
            return True
        if not host or port is None:
            return True
        self.asked += 1
        try:
            with trio.fail_after(self._limit):
                async with await trio.open_tcp_stream(host, port) as stream:
                    if parts.scheme == "https":
                        return True  # whoever ends TLS there is there
                    # A node that is paused takes connections, and says nothing on them.
                    request = f"GET /healthz HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
                    await stream.send_all(request.encode())
                    return bool(await stream.receive_some(1))
        except (OSError, trio.TooSlowError, trio.BrokenResourceError, UnicodeError):
            return False
