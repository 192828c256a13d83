"""What a node does for its logs every now and then: gives up those that others should have or nobody uses, trims them,
and tells what goes through.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import trio

from metadata import keys
from metadata.complaints import note_waiting
from metadata.errors import LogFenced, LogMissing, StoreError
from metadata.log_places import LogPlace
from protocol.names import TopicName
from segments.figures import traffic_of
from segments.hosting import Hosting
from segments.keeping import Keeping
from segments.open_log import OpenLog
from segments.ports import Nodes

log = logging.getLogger(__name__)

# Logs that are given up at once because they belong elsewhere: each move makes its clients connect anew.
_MOVES: Final = 8
# A node must have been there for so many rounds before logs move to it.
_SETTLED_ROUNDS: Final = 2
# Logs that are given up at once because nobody uses them: each of them is a change that others hear of.
_IDLE: Final = 100
# Logs whose figures are put together between two yields: of most there is nothing to tell, and then nothing waits.
_LOGS_PER_TURN: Final = 64
# Rounds after which what a node has told of the traffic of a log is not believed any more.
_BELIEVED_ROUNDS: Final = 3
# Logs that are trimmed together.
_AT_A_TIME: Final = 64


class Upkeep:
    def __init__(
        self,
        hosting: Hosting,
        nodes: Nodes,
        subscriptions: Callable[[TopicName], Awaitable[Mapping[str, str | None]]],
        keeping: Callable[[LogPlace], Awaitable[Keeping]],
        *,
        interval: float,
    ) -> None:
        self._hosting = hosting
        self._nodes = nodes
        self._subscriptions = subscriptions
        self._keeping = keeping
        self._interval = interval
        self._known_rounds: dict[str, int] = {}
        self._unused: set[OpenLog] = set()  # in the last round

    async def run(self) -> None:
        """Give up logs that nobody uses or that belong to other nodes now, a few at a time; look after the others."""
        while True:
            await trio.sleep(self._interval)
            await self.rebalance()
            await self.tell_figures()
            await self.trim()
            await self.give_up_unused()
            self._look_at_classic()

    def _look_at_classic(self) -> None:
        """Nobody tells of another owner of these."""
        for owned in self._hosting.logs:
            if owned.place.segment_id is None:
                self._hosting.look_soon(owned)

    async def tell_figures(self) -> None:
        """Let the others know what goes through the logs of this node."""
        for number, owned in enumerate(self._hosting.logs):
            if number % _LOGS_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
            try:
                await owned.tell(traffic_of(owned, trio.current_time()), _BELIEVED_ROUNDS * self._interval)
            except (LogFenced, LogMissing):
                # Another node may have it, or it was claimed anew for an append: a look tells.
                self._hosting.look_soon(owned)
            except StoreError as error:
                note_waiting(log, error, "what goes through %s is not told now", owned.name)

    async def trim(self) -> None:
        """Remove what is consumed and old enough from all logs of this node."""
        for some in _batched(self._hosting.logs, _AT_A_TIME):
            # Together, because one server of the store that does not answer must not hold up the logs of others.
            async with trio.open_nursery() as nursery:
                for owned in some:
                    nursery.start_soon(self._trim, owned)

    async def _trim(self, owned: OpenLog) -> None:
        try:
            if owned.is_open:
                # Of a classic topic there are such once it was migrated.
                expected = await self._subscriptions(keys.topic_at(owned.place.topic_path))
                await owned.keep(await self._keeping(owned.place), expected)
        except (LogFenced, LogMissing):
            self._hosting.look_soon(owned)
        except StoreError as error:
            note_waiting(log, error, "%s is not trimmed now", owned.name)
        except Exception:
            log.exception("%s cannot be trimmed", owned.name)  # the others can

    async def rebalance(self) -> None:
        others = {node.session for node in self._nodes.nodes[1:]}
        self._known_rounds = {session: self._known_rounds.get(session, 0) + 1 for session in others}
        moving = 0
        for owned in self._hosting.logs:
            chosen = self._hosting.chosen(owned.name)
            if chosen is None or self._known_rounds.get(chosen, 0) < _SETTLED_ROUNDS:
                continue
            await self._hosting.let_go(owned)
            moving += 1
            if moving == _MOVES:
                return

    async def give_up_unused(self) -> None:
        """Let go of logs that have had no client for a round, and hold nothing that would have to be trimmed."""
        unused = {owned for owned in self._hosting.logs if self._is_unused(owned)}
        for owned in [owned for owned in unused if owned in self._unused][:_IDLE]:
            if self._is_unused(owned):  # nobody has come while others were given up
                await self._hosting.let_go(owned)
        self._unused = {owned for owned in unused if owned.is_open}

    def _is_unused(self, owned: OpenLog) -> bool:
        return owned.has_no_clients and (owned.is_empty or self._hosting.is_adopted(owned))


def _batched(logs: Sequence[OpenLog], size: int) -> Iterator[Sequence[OpenLog]]:
    for start in range(0, len(logs), size):
        yield logs[start : start + size]
