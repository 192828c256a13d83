"""Commands that talk to a server until they are done or are told to stop: by Ctrl-C, or by SIGTERM."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from gateway.cli.failures import CommandError

if TYPE_CHECKING:
    import trio

    from protocol.client import WatchState

# Added to the number of a signal, it is what shells and scripts know an end by that signal by.
_BY_SIGNAL = 128


class ServerAway(CommandError):
    """No server answers; the text says what to do."""


class Interruption:
    """What Ctrl-C and SIGTERM stop: the block that `stoppable` is around, so that what comes after can tidy up.

    The second of them ends the tidying up as well, and so does the first while nothing is in the block.
    """

    def __init__(self) -> None:
        import trio

        self.came: int | None = None  # the first signal
        self._scope = trio.CancelScope()
        self._is_inside = False

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        self._is_inside = True
        with self._scope:
            try:
                yield
            finally:
                self._is_inside = False

    async def listen(self, everything: trio.CancelScope) -> None:
        import trio

        # As a signal receiver and not as KeyboardInterrupt: that would end the work in the middle of anything.
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                if self.came is None and self._is_inside:
                    self._scope.cancel()
                else:
                    everything.cancel()
                self.came = self.came or number


def run_until_interrupted(work: Callable[[Interruption], Awaitable[None]]) -> None:
    """Run until the work is done, fails, or the user has had enough."""
    import trio

    async def run() -> Interruption:
        interruption = Interruption()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interruption.listen, nursery.cancel_scope)
            await work(interruption)
            nursery.cancel_scope.cancel()
        return interruption

    if (number := trio.run(run).came) is not None:
        raise typer.Exit(_BY_SIGNAL + number)


@contextmanager
def reaching(service_url: str) -> Iterator[None]:
    """A server that is not there, in a sentence that says what to do; one that goes later is waited for instead."""
    from protocol.client import ConnectionLost, RequestTimedOut, SendTimedOut

    try:
        yield
    except SendTimedOut:
        raise
    except (ConnectionLost, RequestTimedOut):
        raise ServerAway(
            f"no Vela answers at {service_url}: start one with `make serve` or pass --service-url"
        ) from None


def state_printer(service_url: str) -> Callable[[WatchState], None]:
    """Tells a person about lost connections, apart from what is printed to standard output."""
    was_lost = False

    def report(state: WatchState) -> None:
        nonlocal was_lost
        if state == "reconnecting":
            was_lost = True
            print(f"vela: lost the connection to {service_url}, trying again", file=sys.stderr, flush=True)
        elif was_lost:
            print(f"vela: connected to {service_url} again", file=sys.stderr, flush=True)

    return report
