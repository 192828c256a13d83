"""Short words for what tests do with the `pulsar-client` of PyPI on `persistent://` topics.

Its objects are not typed, hence the many `Any`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import pulsar

# Until the server has surely had the time to send something more, if it were to.
QUIET: Final = 0.5
LIMIT: Final = 20.0


def receive(consumer: Any, count: int, within: float = LIMIT, settle: Callable[[Any], None] | None = None) -> list[Any]:
    """What came until there were `count` messages or the time was over; all acknowledged, unless `settle` says else."""
    deadline = time.monotonic() + within
    came: list[Any] = []
    while len(came) < count and (left := deadline - time.monotonic()) > 0:
        try:
            message = consumer.receive(timeout_millis=max(1, int(left * 1000)))
        except pulsar.Timeout:
            break
        (settle or consumer.acknowledge)(message)
        came.append(message)
    return came


def keep(_: Any) -> None:
    """Neither acknowledge nor reject a message."""


def read(reader: Any, count: int, within: float = LIMIT) -> list[bytes]:
    """What a reader reads until there were `count` messages or the time was over."""
    deadline = time.monotonic() + within
    came: list[bytes] = []
    while len(came) < count and (left := deadline - time.monotonic()) > 0:
        try:
            came.append(reader.read_next(timeout_millis=max(1, int(left * 1000))).data())
        except pulsar.Timeout:
            break
    return came


def nothing_more(consumer: Any) -> bool:
    return receive(consumer, 1, within=QUIET) == []


def data(messages: Sequence[Any]) -> list[bytes]:
    return [message.data() for message in messages]


def numbered(count: int, prefix: str = "message") -> list[bytes]:
    return [f"{prefix}-{n:04d}".encode() for n in range(count)]


def send(producer: Any, contents: Sequence[bytes], **options: Any) -> list[Any]:
    """Send one by one; the message ids."""
    return [producer.send(content, **options) for content in contents]


def send_together(producer: Any, contents: Sequence[bytes], **options: Any) -> list[Any]:
    """Send all without waiting in between, so that they go in batches where those are on; the message ids."""
    futures = sending(producer, contents, **options)
    producer.flush()
    return [sent.result(LIMIT) for sent in futures]


def sending(producer: Any, contents: Sequence[bytes], **options: Any) -> list[Future[Any]]:
    """Start sending all of them; each future gets its message id."""
    futures: list[Future[Any]] = [Future() for _ in contents]

    def settled_by(future: Future[Any]) -> Callable[[Any, Any], None]:
        def done(result: Any, message_id: Any) -> None:
            if result == pulsar.Result.Ok:
                future.set_result(message_id)
            else:
                future.set_exception(RuntimeError(str(result)))

        return done

    for content, future in zip(contents, futures, strict=True):
        producer.send_async(content, settled_by(future), **options)
    return futures
