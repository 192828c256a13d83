"""Commands that talk to a server until they are done or the user presses Ctrl-C."""

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

# What Ctrl-C means to shells and scripts: 128 + SIGINT.
INTERRUPTED = 130


class ServerAway(CommandError):
    """No server answers; the text says what to do."""


class Interruption:
    """What Ctrl-C stops: the block that `stoppable` is around, so that what comes after can tidy up.

    A second Ctrl-C ends the tidying up as well, and so does the first while nothing is in the block.
    """

    def __init__(self) -> None:
        import trio

        self.came = False
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
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                is_first, self.came = not self.came, True
                (self._scope if is_first and self._is_inside else everything).cancel()


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

    if trio.run(run).came:
        raise typer.Exit(INTERRUPTED)


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
