"""A scripted server beside a command that runs in the test's own thread."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from threading import Thread

import trio

from tests.protocol.client.scripted_server import Script, scripted_server


@contextmanager
def scripted(*scripts: Script) -> Iterator[str]:
    """The URL of a scripted server that runs beside the command, in a thread of its own."""
    urls: Queue[str] = Queue()
    stop = trio.CancelScope()
    tokens: Queue[trio.lowlevel.TrioToken] = Queue()

    async def serve() -> None:
        with stop:
            async with scripted_server(*scripts) as server:
                tokens.put(trio.lowlevel.current_trio_token())
                urls.put(server.url)
                await trio.sleep_forever()

    thread = Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield urls.get(timeout=10)
    finally:
        tokens.get(timeout=10).run_sync_soon(stop.cancel)
        thread.join()
