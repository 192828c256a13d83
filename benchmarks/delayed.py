"""How late delayed messages are delivered: from the moment that their producer named until they arrive, against the
time that a message without a delay takes from its sender to the same consumer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from benchmarks.figures import Figure, Quantity
from benchmarks.producers import producer_message
from benchmarks.server import RunningServer, running_server, segment_urls
from benchmarks.wires import Wire, expect
from protocol.framing import encode, encode_payload
from protocol.wire.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageMetadata

TOPIC = "delayed"
SUBSCRIPTION = "delayed"
# Milliseconds after its time at which a message has to be there.
TARGET = 100.0
# Seconds between the last message sent and the first one due.
LEAD = 1.0
GAP = 0.02


@dataclass(frozen=True, slots=True)
class Scale:
    messages: int


FULL = Scale(messages=500)
QUICK = Scale(messages=20)
_ID = 1


def measure(quick: bool) -> list[Figure]:
    scale = QUICK if quick else FULL
    with running_server() as server:
        server.create_topic(TOPIC, 1)
        clients = _Clients(server, permits=2 * scale.messages)
        at_once = [clients.deliver() for _ in range(scale.messages)]
        late = clients.deliver_delayed(scale.messages)
        clients.close()
    return [_figure(late, at_once)]


class _Clients:
    """A producer and a consumer of a Shared subscription, each on a connection of its own."""

    def __init__(self, server: RunningServer, permits: int) -> None:
        [segment] = segment_urls(TOPIC, 1)
        self._consumer = Wire(server.pulsar_address)
        self._consumer.ask(_subscribe_message(segment), BaseCommand.SUCCESS)
        self._consumer.send(_flow_message(permits))
        self._producer = Wire(server.pulsar_address)
        self._producer.ask(producer_message(_ID, 1, segment), BaseCommand.PRODUCER_SUCCESS)
        self._sequence = 0

    def close(self) -> None:
        self._producer.close()
        self._consumer.close()

    def deliver(self) -> float:
        """Seconds from sending a message without a delay until it arrives."""
        started_at = time.time()
        self._send(None)
        return self._arrivals(1)[0] - started_at

    def deliver_delayed(self, count: int) -> list[float]:
        """Seconds that each of so many messages, due one after another, was late."""
        first = time.time() + LEAD
        due = [round((first + number * GAP) * 1e3) for number in range(count)]
        for moment in due:
            self._send(moment)
        return [arrived - moment / 1e3 for arrived, moment in zip(self._arrivals(count), due, strict=True)]

    def _send(self, deliver_at_ms: int | None) -> None:
        metadata = MessageMetadata(producer_name="benchmark", sequence_id=self._sequence, publish_time=1)
        if deliver_at_ms is not None:
            metadata.deliver_at_time = deliver_at_ms
        command = BaseCommand(type=BaseCommand.SEND)
        command.send.producer_id = _ID
        command.send.sequence_id = self._sequence
        command.send.num_messages = 1
        self._sequence += 1
        self._producer.ask(encode_payload(command, metadata.SerializeToString(), b"x"), BaseCommand.SEND_RECEIPT)

    def _arrivals(self, count: int) -> list[float]:
        times: list[float] = []
        while len(times) < count:
            types = self._consumer.receive()
            expect(types, BaseCommand.MESSAGE)
            times += [time.time()] * len(types)
        return times


def _subscribe_message(segment: str) -> bytes:
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    command.subscribe.topic = segment
    command.subscribe.subscription = SUBSCRIPTION
    command.subscribe.subType = CommandSubscribe.Shared
    command.subscribe.consumer_id = _ID
    command.subscribe.request_id = 1
    return encode(command)


def _flow_message(permits: int) -> bytes:
    command = BaseCommand(type=BaseCommand.FLOW)
    command.flow.consumer_id = _ID
    command.flow.messagePermits = permits
    return encode(command)


def _figure(late: Sequence[float], at_once: Sequence[float]) -> Figure:
    def p99(seconds: Sequence[float]) -> float:
        return quantiles(seconds, n=100, method="inclusive")[98] * 1e3

    return Figure(
        name="lateness of delayed messages, p99",
        measured=Quantity(p99(late), "ms"),
        floor=Quantity(p99(at_once), "ms"),
        target=TARGET,
        notes=(
            f"{len(late)} messages due {GAP * 1e3:g} ms apart, from the moment that their producer named to their "
            f"arrival at a Shared consumer: p50 {median(late) * 1e3:.1f} ms, latest {max(late) * 1e3:.1f} ms, "
            f"earliest {min(late) * 1e3:.1f} ms",
            f"floor: messages without a delay, from sending to arrival: p50 {median(at_once) * 1e3:.1f} ms",
        ),
    )
