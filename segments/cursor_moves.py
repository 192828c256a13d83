"""Moving cursors of logs wherever they are: their owners do it, for requests that are stored with the logs.

Nothing is taken from its owner for that, so producers go on. A log that nobody has is opened here, which carries out
what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from metadata.cursor_requests import PendingMove
from metadata.errors import CursorNotMoved
from metadata.segment_logs import SegmentLogs
from protocol.backoff import Backoff
from segments.errors import NoLog, NotHere
from segments.hosting import Hosting

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.2


class CursorMoves:
    def __init__(self, logs: SegmentLogs, hosting: Hosting, *, patience: float) -> None:
        """`patience`: how long an owner has, which is longer than it takes to see that it is dead."""
        self._logs = logs
        self._hosting = hosting
        self._patience = patience

    async def carried_out(self, moves: Sequence[PendingMove]) -> None:
        """Return when these cursors are moved. Raises CursorNotMoved where an owner takes too long."""
        give_up_at = trio.current_time() + self._patience
        for move in moves:
            backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
            while not await self._is_carried_out(move):
                if trio.current_time() >= give_up_at:
                    raise CursorNotMoved(
                        f"The owner of {move.place.name} has not moved the cursor of {move.subscription} yet: it is"
                        " moved before anybody consumes from it again. Look at the backlog, or try again."
                    )
                await trio.sleep(backoff.next())

    async def _is_carried_out(self, move: PendingMove) -> bool:
        state = await self._logs.state(move.place)
        if state is None or (asked := state.requests.get(move.subscription)) is None or asked.op != move.op:
            # Gone with the log, carried out, or replaced by a later request.
            return True
        if not await self._hosting.is_elsewhere(state.session):
            try:
                await self._hosting.open(move.place.name, anywhere=True, surely=True)
            except NoLog:
                return True
            except NotHere:
                return False  # another node was faster
        return False
