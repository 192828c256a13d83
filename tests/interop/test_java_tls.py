"""The Java client at a server that is reached over TLS alone, through a proxy that ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

import trio

from tests.e2e.vela_process import VelaServer
from tests.interop.java_peer import JavaPeer
from tests.interop.messages import assert_each_once, assert_order_of_keys, keyed, unkeyed
from tests.support.ports import HOST, ReservedPort
from tests.support.proxy import CERTIFICATE, TlsProxy


@contextmanager
def tls_proxy(port: int) -> Iterator[int]:
    """The port of a proxy to the server that will listen at this one."""
    ports: Queue[tuple[int, trio.lowlevel.TrioToken]] = Queue()
    scope = trio.CancelScope()

    async def serve() -> None:
        with scope:
            async with TlsProxy.open(HOST, port) as proxy:
                ports.put((proxy.port, trio.lowlevel.current_trio_token()))
                await trio.sleep_forever()

    thread = Thread(target=trio.run, args=(serve,), daemon=True)
    thread.start()
    number, token = ports.get(timeout=30)
    try:
        yield number
    finally:
        token.run_sync_soon(scope.cancel)
        thread.join()


def test_clients_find_segments_and_their_leader_by_an_address_with_tls(java: JavaPeer, tmp_path: Path) -> None:
    topic, plain = "topic://public/default/secured", ReservedPort()
    with tls_proxy(plain.number) as secured:
        url = f"pulsar+ssl://localhost:{secured}"
        flags = ("--listen", f"{HOST}:{plain.number}", "--advertise", url)
        with VelaServer.start(tmp_path / "secured", *flags) as server:
            server.create("secured", segments=2)
            with (
                java.client(url, trust=str(CERTIFICATE)) as client,
                client.producer(topic) as producer,
                client.stream("streamed", topic=topic) as stream,
                client.queue("queued", topic=topic) as queue,
            ):
                producer.send(sent := keyed(40))
                assert_order_of_keys(stream.receive(40), sent)
                assert_each_once(queue.receive(40), sent)
                assert server.request("POST", "/admin/v2/scalable/public/default/secured/split/0").is_success
                producer.send(more := unkeyed(20, "more"))
                assert_each_once(stream.receive(20), more)
                assert_each_once(queue.receive(20), more)
    plain.release()
