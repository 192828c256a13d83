"""Attacks on the admin API: readers that do not read, bodies that trickle, lists, loops."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException

from benchmarks.hostile.commands import joined, producer, send, subscribe
from benchmarks.hostile.scenes import CLASSIC, SCALABLE, Attack, Scene
from benchmarks.server import segment_urls


def _sockets(scene: Scene, count: int, head: bytes) -> list[socket.socket]:
    """So many connections on which this was said, with hardly any room for an answer."""
    opened = []
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(scene.account.left)
        sock.connect(scene.http)
        sock.sendall(head)
        opened.append(sock)
    return opened


def _head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def _close(sockets: Sequence[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _in_parallel(scene: Scene, requests: Sequence[tuple[str, str, str | None]], clients: int = 16) -> None:
    """These requests in turn, over and over, on so many connections."""

    def client(first: int) -> None:
        number = first
        while scene.goes_on:
            connection = scene.http_peer()
            with suppress(OSError, HTTPException):
                while scene.goes_on:
                    scene.ask(connection, *requests[number % len(requests)])
                    number += clients
            connection.close()

    with ThreadPoolExecutor(clients) as threads:
        for done in [threads.submit(client, number) for number in range(clients)]:
            done.result()


def unread_answers(scene: Scene) -> Iterator[None]:
    scene.logs()
    yield
    opened = _sockets(scene, 12, _head("GET", CLASSIC))
    _wait(scene)
    _close(opened)


def _wait(scene: Scene) -> None:
    """Until the time is up."""
    select.select([], [], [], scene.account.left)


def pipelined(scene: Scene) -> Iterator[None]:
    """Hundreds of requests on each connection at once, and no answer read."""
    scene.logs()
    yield
    opened = _sockets(scene, 12, _head("GET", CLASSIC) * 200)
    _wait(scene)
    _close(opened)


def trickled_bodies(scene: Scene) -> Iterator[None]:
    topic = scene.topic("body")
    head = _head("PUT", f"{SCALABLE}/{topic}/properties", "Content-Type: application/json", "Content-Length: 100000")
    yield
    opened = _sockets(scene, 100, head + b"{")
    while scene.goes_on:
        for sock in opened:
            with suppress(OSError):
                sock.send(b" ")
        select.select([], [], [], 0.05)
    _close(opened)


def trickled_heads(scene: Scene) -> Iterator[None]:
    yield
    opened = _sockets(scene, 400, b"GET /healthz HTTP/1.1\r\nX: ")
    while scene.goes_on:
        for sock in opened:
            with suppress(OSError):
                sock.send(b"x")
        select.select([], [], [], 0.05)
    _close(opened)


def long_queries(scene: Scene) -> Iterator[None]:
    query = "&".join(f"p{number}=v" for number in range(scene.many(6_000)))
    yield
    _in_parallel(scene, [("GET", f"{SCALABLE}?{query}", None), ("GET", f"{SCALABLE}/{'%2e' * 15_000}", None)])


def topic_lists(scene: Scene) -> Iterator[None]:
    scene.logs()
    scene.topics("public/default", (f"topic-{number}" for number in range(scene.many(4_000))))
    yield
    _in_parallel(scene, [("GET", SCALABLE, None), ("GET", CLASSIC, None), ("GET", f"{CLASSIC}/partitioned", None)])


def seeking(scene: Scene) -> Iterator[None]:
    topic = scene.topic("seek")
    subscription = f"{SCALABLE}/{topic}/subscriptions/s"
    scene.request("PUT", subscription)
    peer = scene.peer()
    peer.ask(producer(1, segment_urls(topic, 1)[0]))
    count = scene.many(5_000)
    peer.ask(joined(send(1, at) for at in range(count)), count)
    yield
    _in_parallel(
        scene, [("POST", f"{subscription}/seek?timestamp=1", None), ("POST", f"{subscription}/skip-all", None)]
    )


def statistics(scene: Scene) -> Iterator[None]:
    topic = scene.topic("stats")
    segment = segment_urls(topic, 1)[0]
    peer = scene.peer()
    count = scene.many(9_000)
    peer.ask(joined(subscribe(at, segment, f"s-{at % 900}") for at in range(count)), count)
    yield
    _in_parallel(scene, [("GET", f"{SCALABLE}/{topic}/stats", None)], clients=4)


def wide_statistics(scene: Scene) -> Iterator[None]:
    classic = scene.partitioned("partitions", 512)
    topic = scene.topic("wide", scene.many(1_000))
    yield
    _in_parallel(
        scene,
        [
            ("GET", f"{CLASSIC}/{classic}/partitioned-stats?perPartition=true", None),
            ("GET", f"{SCALABLE}/{topic}/stats", None),
            ("GET", f"{SCALABLE}/{topic}", None),
        ],
        clients=8,
    )


def metrics(scene: Scene) -> Iterator[None]:
    yield
    _in_parallel(scene, [("GET", "/metrics", None), ("GET", "/readyz", None)], clients=32)


def bodies(scene: Scene) -> Iterator[None]:
    """Bodies that are large, deep, or hardly JSON."""
    topic = scene.topic("body")
    size = scene.many(1_000_000)
    texts = [
        "[" * (size // 2) + "]" * (size // 2),
        '{"a":' * (size // 6) + "1" + "}" * (size // 6),
        json.dumps({f"k{number}": "v" for number in range(size // 15)}),
        "9" * size,
        '"' + "\\u0041" * (size // 6) + '"',
    ]
    yield
    _in_parallel(
        scene,
        [("PUT", f"{SCALABLE}/{topic}/properties", text) for text in texts]
        + [("PUT", f"/admin/v2/namespaces/public/made-{number}", text) for number, text in enumerate(texts)],
        clients=4,
    )


def splits(scene: Scene) -> Iterator[None]:
    topic = scene.topic("split", 500)
    yield
    _in_parallel(scene, [("POST", f"{SCALABLE}/{topic}/split/{number}", None) for number in range(500)], clients=8)


def creations(scene: Scene) -> Iterator[None]:
    """Topics of many segments, made and deleted."""
    yield
    _in_parallel(
        scene,
        [
            (method, f"{SCALABLE}/{scene.name('big')}-{number}{query}", None)
            for number in range(32)
            for method, query in (("PUT", "?numInitialSegments=1000"), ("DELETE", "?force=true"))
        ],
        clients=4,
    )


def connections(scene: Scene) -> Iterator[None]:
    """More connections than there may be, again and again."""
    yield
    while scene.goes_on:
        _close(_sockets(scene, 600, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))


ADMINISTERING = tuple(
    Attack(name, act, is_http=True, litters=act is topic_lists)
    for name, act in (
        ("twelve HTTP clients that do not read", unread_answers),
        ("HTTP pipelines that nobody reads", pipelined),
        ("HTTP bodies that trickle", trickled_bodies),
        ("HTTP heads that trickle", trickled_heads),
        ("HTTP queries of 50 KB", long_queries),
        ("HTTP lists of 6,000 topics in parallel", topic_lists),
        ("HTTP seeks and skips in a loop", seeking),
        ("HTTP statistics of 9,000 consumers", statistics),
        ("HTTP statistics of 1,000 segments", wide_statistics),
        ("HTTP metrics in a loop", metrics),
        ("HTTP bodies of 1 MB", bodies),
        ("HTTP splits of 500 segments", splits),
        ("HTTP topics of 1,000 segments", creations),
        ("HTTP connections come and go", connections),
    )
)
