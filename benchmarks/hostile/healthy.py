"""An ordinary client in a process of its own: a PING, a SEND and a GET every few milliseconds, whether those before
them were answered or not, so that a stall counts for as long as it holds.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection

from benchmarks.children import Child, child
from benchmarks.figures import MeasurementFailed
from benchmarks.hostile.peers import PING, PONG
from benchmarks.producers import producer_message
from benchmarks.readers import FRAME_LIMIT, Address
from benchmarks.wires import Wire
from protocol.framing import encode_payload
from protocol.wire.pulsar_api_pb2 import BaseCommand, MessageMetadata

PING_INTERVAL = 0.005
SEND_INTERVAL = 0.01
GET_INTERVAL = 0.05
# After the last question; what has no answer by then counts as long as that.
_PATIENCE = 60.0
_RETRY = 0.1
# Coming back may take two steps more, each as long as one waits for a frame.
_LIMIT = _PATIENCE + 2 * FRAME_LIMIT + 10.0
_SIZE = 100
_PRODUCER_ID = 1


@dataclass(frozen=True, slots=True)
class Delays:
    """Seconds from question to answer, and how often a connection or a producer was lost meanwhile."""

    pings: Sequence[float]
    sends: Sequence[float]
    gets: Sequence[float]
    losses: int


class Healthy:
    """The parent's end."""

    def __init__(self, process: Child) -> None:
        self._process = process

    def open(self, pulsar: Address, http: Address, topic: str, segment: str) -> None:
        self._process.ask("open", pulsar, http, topic, segment)

    def begin(self) -> None:
        """Ask from now on."""
        self._process.ask("begin")

    def end(self) -> Delays:
        """Ask nothing more, and wait for the answers that are missing."""
        self._process.tell("end")
        delays = self._process.answer(_LIMIT)
        assert isinstance(delays, Delays)
        return delays


@contextmanager
def healthy() -> Iterator[Healthy]:
    with child(_main) as process:
        yield Healthy(process)


class _Asking:
    """Asks on one connection at a steady pace; answers come in the order of the questions."""

    interval: float
    answer: int

    def __init__(self, address: Address) -> None:
        self._address = address
        self._wire = self._opened()
        self._asked: deque[tuple[float, bytes]] = deque()
        self._thread: threading.Thread | None = None
        self._give_up_at: float | None = None  # once nothing more is asked
        self.delays: list[float] = []
        self.losses = 0

    def begin(self) -> None:
        self.delays, self.losses = [], 0
        self._give_up_at = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """To be joined afterwards."""
        self._give_up_at = time.monotonic() + _PATIENCE

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()

    def close(self) -> None:
        self._wire.close()

    def question(self) -> bytes:
        raise NotImplementedError

    def _opened(self) -> Wire:
        return Wire(self._address)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._is_done():
            try:
                wait = _RETRY
                if self._give_up_at is None:
                    if time.monotonic() >= due:
                        question = self.question()
                        self._asked.append((due, question))
                        due += self.interval
                        self._wire.send(question)
                    wait = max(0.0, due - time.monotonic())
                if select.select([self._wire], [], [], wait)[0]:
                    self._take(self._wire.receive())
            except (OSError, MeasurementFailed):
                self._come_back()
        now = time.monotonic()
        self.delays += [now - at for at, _ in self._asked]
        self.losses += len(self._asked)
        self._asked.clear()

    def _is_done(self) -> bool:
        return self._give_up_at is not None and (not self._asked or time.monotonic() > self._give_up_at)

    def _take(self, types: bytes) -> None:
        now = time.monotonic()
        for kind in types:
            if kind == self.answer:
                self.delays.append(now - self._asked.popleft()[0])
            elif kind == BaseCommand.PING:
                self._wire.send(PONG)
            else:
                raise MeasurementFailed("the server ended what is asked on this connection")

    def _come_back(self) -> None:
        """As any client does: connect again and say again what has no answer."""
        self.losses += 1
        self._wire.close()
        while not self._is_done():
            try:
                self._wire = self._opened()
                for _, question in self._asked:
                    self._wire.send(question)
                return
            except (OSError, MeasurementFailed):
                time.sleep(_RETRY)


class _Pings(_Asking):
    interval = PING_INTERVAL
    answer = BaseCommand.PONG

    def question(self) -> bytes:
        return PING


class _Sends(_Asking):
    interval = SEND_INTERVAL
    answer = BaseCommand.SEND_RECEIPT

    def __init__(self, address: Address, segment: str) -> None:
        self._segment = segment
        self._sequence = 0
        super().__init__(address)

    def question(self) -> bytes:
        metadata = MessageMetadata(producer_name="healthy", sequence_id=self._sequence, publish_time=1)
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = _PRODUCER_ID
        command.send.sequence_id = self._sequence
        command.send.num_messages = 1
        self._sequence += 1
        return encode_payload(command, metadata.SerializeToString(), b"x" * _SIZE)

    def _opened(self) -> Wire:
        wire = super()._opened()
        wire.ask(producer_message(_PRODUCER_ID, 1, self._segment), BaseCommand.PRODUCER_SUCCESS)
        return wire


class _Gets:
    """An ordinary request of the admin API, one after another; the time that one is late counts for it."""

    def __init__(self, address: Address, path: str) -> None:
        self._address = address
        self._path = path
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self.delays: list[float] = []
        self.losses = 0

    def begin(self) -> None:
        self.delays, self.losses = [], 0
        self._ending.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()

    def close(self) -> None:
        """There is nothing between two requests."""

    def _run(self) -> None:
        due = time.monotonic()
        while not self._ending.is_set():
            time.sleep(max(0.0, due - time.monotonic()))
            if not self._get():
                self.losses += 1
            now = time.monotonic()
            while due <= now:
                self.delays.append(now - due)
                due += GET_INTERVAL

    def _get(self) -> bool:
        connection = HTTPConnection(*self._address, timeout=_PATIENCE)
        try:
            connection.request("GET", self._path)
            response = connection.getresponse()
            response.read()
            return response.status < 400
        except (OSError, HTTPException):
            return False
        finally:
            connection.close()


def _main(pipe: Connection) -> None:
    there: list[_Pings | _Sends | _Gets] = []
    while True:
        match pipe.recv():
            case ("open", pulsar, http, path, segment):
                for asking in there:
                    asking.close()
                there = [_Pings(pulsar), _Sends(pulsar, segment), _Gets(http, path)]
                pipe.send(None)
            case ("begin",):
                for asking in there:
                    asking.begin()
                pipe.send(None)
            case ("end",):
                for asking in there:
                    asking.end()
                for asking in there:
                    asking.join()
                pings, sends, gets = there
                pipe.send(Delays(pings.delays, sends.delays, gets.delays, sum(each.losses for each in there)))
