"""The Java clients in a process of their own, and Python's side of their producers and consumers.

A `JavaPeer` is the process. Everything in it has a name, given here, under which later requests find it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from metadata.embedded import die_with_parent
from tests.interop.messages import Received, Sent

# Netty wants these opened; the rest keeps a process that lives for seconds small and quick to start.
FLAGS: Final = (
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED", "--add-opens", "java.base/jdk.internal.misc=ALL-UNNAMED"),
    *("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
# More than the clients' own limit of 30 s, so that their reason is seen.
ANSWER_LIMIT: Final = 45.0


class JavaError(Exception):
    """What a Java client threw: the name of its class, what it said, and the HTTP status if there was one."""

    def __init__(self, reply: Mapping[str, Any]) -> None:
        self.kind = str(reply["error"])
        self.status: int | None = reply.get("status")
        super().__init__(reply["message"])


class JavaPeer:
    """Start it from the main thread: the kernel ends it when the thread that forked it ends."""

    def __init__(self, class_path: str, log: Path) -> None:
        self.log = log
        with log.open("wb") as err:
            self._process = subprocess.Popen(
                ["java", *FLAGS, "-cp", class_path, "vela.interop.Driver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                process_group=0,
                preexec_fn=die_with_parent() if sys.platform == "linux" else None,
            )
        self._ids = count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def name(self, role: str) -> str:
        return f"{role}-{next(self._ids)}"

    def start(self, operation: str, **arguments: Any) -> Future[Any]:
        """Ask for something without waiting for it."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._ids)
            self._waiting[number] = future
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": number, "do": operation} | arguments) + "\n")
            self._process.stdin.flush()
        return future

    def call(self, operation: str, *, within: float = ANSWER_LIMIT, **arguments: Any) -> Any:
        try:
            return self.start(operation, **arguments).result(within)
        except TimeoutError:
            raise AssertionError(f"{operation} took more than {within:g} s; the log is {self.log}") from None

    def client(self, url: str, **options: Any) -> JavaClient:
        return JavaClient(self, url, **options)

    def admin(self, url: str) -> JavaAdmin:
        return JavaAdmin(self, url)

    def kill(self) -> None:
        """End it at once, so that its clients say goodbye to nobody."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            future = self._waiting.pop(reply["id"])
            if "error" in reply:
                future.set_exception(JavaError(reply))
            else:
                future.set_result(reply.get("result"))
        for future in self._waiting.values():
            future.set_exception(EOFError(f"the Java process ended; the log is {self.log}"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class _Named:
    """Something that is open in the process."""

    def __init__(self, peer: JavaPeer, role: str, **arguments: Any) -> None:
        self._peer = peer
        self._name = peer.name(role)
        peer.call(role, name=self._name, **arguments)

    def close(self) -> None:
        self._peer.call("close", name=self._name)

    def closing(self) -> Future[Any]:
        """Close in the background."""
        return self._peer.start("close", name=self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # What failed is told first, even if closing does not work either, as after a test that killed the peer.
            try:
                self.closing()
            except (OSError, ValueError):
                pass


class JavaProducer(_Named):
    def sending(self, messages: Sequence[Sent], *, asynchronously: bool = False, pace: int = 0) -> Future[Any]:
        """Send in the background; the result says which ones failed, by their place, and why."""
        said = [message._asdict() for message in messages]
        # `async` is a word of Python's.
        options = {"async": asynchronously, "pace": pace}
        return self._peer.start("send", producer=self._name, messages=said, **options)

    def send(self, messages: Sequence[Sent], *, asynchronously: bool = False) -> None:
        """Send all of them; every one must be acknowledged."""
        failed = self.sending(messages, asynchronously=asynchronously).result(ANSWER_LIMIT)
        assert not failed, failed

    @property
    def acknowledged(self) -> int:
        return int(self._peer.call("progress", producer=self._name))


class JavaConsumer(_Named):
    def receiving(self, count: int, within: float = 30.0, settle: str = "acknowledge") -> Future[Any]:
        """Receive in the background; see `received`."""
        options = {"count": count, "limit": int(within * 1000), "settle": settle}
        return self._peer.start("receive", consumer=self._name, **options)

    def receive(self, count: int, within: float = 30.0, settle: str = "acknowledge") -> list[Received]:
        """What came until there were `count` messages or the time was over; `settle` is acknowledge, reject or keep."""
        return received(self.receiving(count, within, settle), within)

    def checkpoint(self) -> str:
        return str(self._peer.call("checkpoint", consumer=self._name))


def received(receiving: Future[Any], within: float = 30.0) -> list[Received]:
    said = receiving.result(within + ANSWER_LIMIT)
    return [Received(each["key"], each["value"], each["topic"], each["redeliveries"]) for each in said]


class JavaClient(_Named):
    """A `PulsarClient`: its connections are its own."""

    def __init__(self, peer: JavaPeer, url: str, **options: Any) -> None:
        """`trust` is the file with the certificates that it accepts."""
        super().__init__(peer, "client", url=url, **options)

    def producer(self, topic: str, **options: Any) -> JavaProducer:
        return JavaProducer(self._peer, "producer", client=self._name, topic=topic, **options)

    def queue(self, subscription: str, **options: Any) -> JavaConsumer:
        return JavaConsumer(self._peer, "queue", client=self._name, subscription=subscription, **options)

    def stream(self, subscription: str, **options: Any) -> JavaConsumer:
        return JavaConsumer(self._peer, "stream", client=self._name, subscription=subscription, **options)

    def checkpoints(self, topic: str, **options: Any) -> JavaConsumer:
        return JavaConsumer(self._peer, "checkpoints", client=self._name, topic=topic, **options)


class JavaAdmin:
    """A `PulsarAdmin`."""

    def __init__(self, peer: JavaPeer, url: str) -> None:
        self._peer, self._url = peer, url

    def __call__(self, call: str, **arguments: Any) -> Any:
        return self._peer.call("admin", url=self._url, call=call, **arguments)
