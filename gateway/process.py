"""A node as a process: with its embedded store if it has one, until a signal ends it."""

from __future__ import annotations

import gc
import logging
import signal

import trio

from gateway.node import start_node
from gateway.settings import Settings
from gateway.supervision import FIRST_PAUSE, LONGEST_PAUSE
from metadata.embedded import EmbeddedValkey
from metadata.unwrap import unwrapped
from protocol.backoff import Backoff

log = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM; the exit code of the process."""
    # Python's own handler raises KeyboardInterrupt, which is lost if it falls into a fork. Until the loop takes the
    # signals over, the default ends us, and the store goes with us.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not settings.uses_embedded_store:
        return trio.run(_serve_until_signalled, settings, settings.store, None)
    # Started here, in the main thread and outside the loop: the parent-death signal hangs on the forking thread.
    with EmbeddedValkey(settings.data_dir) as embedded:
        return trio.run(_serve_until_signalled, settings, embedded.url, embedded)


async def _serve_until_signalled(settings: Settings, store_url: str, embedded: EmbeddedValkey | None) -> int:
    with unwrapped(), trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            starting = trio.CancelScope()
            serving, signalled, hurried = trio.Event(), trio.Event(), trio.Event()

            async def take_signals() -> None:
                async for number in signals:
                    log.info("stopping on %s", signal.Signals(number).name)
                    # Whoever presses Ctrl-C waits for the end; a second signal is from somebody who does by now.
                    if number == signal.SIGINT or signalled.is_set():
                        hurried.set()
                    signalled.set()
                    if not serving.is_set():
                        starting.cancel()

            nursery.start_soon(take_signals)
            if embedded is not None:
                nursery.start_soon(_keep_running, embedded)
            with starting:
                async with start_node(settings, store_url, alone=embedded is not None) as node:
                    serving.set()
                    _spare_garbage_collection()
                    print(f"ready {node.pulsar_url} {node.http_url}", flush=True)
                    await signalled.wait()
                    node.drain()
                    with trio.move_on_after(settings.drain_delay):
                        await hurried.wait()
                    node.stop()
            nursery.cancel_scope.cancel()
    return 0


def _spare_garbage_collection() -> None:
    """Look for cycles less often, and never among what the process keeps for life.

    Connections and watches are many and long-lived, and hold no cycles: with the default a storm of them has the
    collector walk all of them again and again, for a fifth of the time. `gateway.cycles` looks when it is worth it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


async def _keep_running(embedded: EmbeddedValkey) -> None:
    """Start the embedded store again whenever it ends by itself; its data are on disk, watches go on."""
    backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
    while True:
        status = await embedded.wait()
        log.error("the embedded store ended with status %d and is started again", status)
        try:
            await embedded.restart()
            backoff.reset()
        except Exception as error:
            log.error("the embedded store does not start: %s", error)
            await trio.sleep(backoff.next())
