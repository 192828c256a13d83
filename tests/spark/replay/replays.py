"""Replays without Spark: tasks as threads that meet at a barrier, and a server that tells its watchers nonsense."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any
from zlib import crc32

import pyarrow as pa
import trio

from protocol import replies
from protocol.framing import Frame, FrameDecoder, encode
from protocol.replies import Features
from protocol.wire.pulsar_api_pb2 import BaseCommand
from spark.replay.plans import ReplayPlan
from spark.replay.task import run_task
from tests.spark.replay.rows import Row, timeline
from tests.support.ports import HOST

NAMESPACE = "public/shop"
OTHER = "public/store"


def plan_for(target: str, store_url: str, **changes: Any) -> ReplayPlan:
    chosen: dict[str, Any] = {
        "run_id": "r1",
        "tasks": 2,
        "namespaces": (NAMESPACE, OTHER),
        "prefix": "replay-r1-",
        "watchers": 8,
        "connections": 4,
        "settle_s": 15.0,
        "lead_s": 0.1,
    }
    return ReplayPlan(target=target, store_url=store_url, **{**chosen, **changes})


class Meeting:
    """Where the tasks of one replay meet, as they would in Spark."""

    def __init__(self, tasks: int) -> None:
        self.said: list[list[str]] = [[] for _ in range(tasks)]  # by each task, in order
        self._barrier = threading.Barrier(tasks, timeout=60)

    def meet(self, index: int, message: str) -> Sequence[str]:
        turn = len(self.said[index])
        self.said[index].append(message)
        self._barrier.wait()
        return [said[turn] for said in self.said]

    def abort(self) -> None:
        self._barrier.abort()


@dataclass(frozen=True)
class Later:
    """Rows that no task gets to read before the event; among those before it each task has a change."""

    rows: Sequence[Row]
    after: threading.Event

    def read(self) -> Iterator[Row]:
        assert self.after.wait(30), "what the rest of the timeline waits for never came"
        yield from self.rows


async def replay(
    plan: ReplayPlan, rows: Sequence[Row], *, later: Later | None = None, met: Callable[[str], None] = lambda _: None
) -> list[pa.RecordBatch]:
    """What all tasks hand back; `met` is called by each after they met, with what it has said there."""
    meeting = Meeting(plan.tasks)
    found: list[pa.RecordBatch] = []

    def run(index: int) -> None:
        def meet(message: str) -> Sequence[str]:
            said = meeting.meet(index, message)
            met(message)
            return said

        def own(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
            yield from timeline([row for row in rows if crc32(row[3].encode()) % plan.tasks == index])

        try:
            batches = chain(own(rows), own(later.read()) if later else ())
            found.extend(run_task(plan, index, batches, meet))
        except BaseException:
            meeting.abort()
            raise

    try:
        async with trio.open_nursery() as nursery:
            for index in range(plan.tasks):
                nursery.start_soon(trio.to_thread.run_sync, partial(run, index))
    except BaseExceptionGroup as group:
        # Those who only waited for the one that failed say nothing of interest.
        reasons = group.subgroup(lambda error: not isinstance(error, threading.BrokenBarrierError)) or group
        raise reasons.exceptions[0] from None
    assert len({len(said) for said in meeting.said}) == 1
    return found


_FEATURES = Features(supports_scalable_topics=True)
Script = Callable[[BaseCommand], Sequence[BaseCommand]]


@asynccontextmanager
async def scripted_server(script: Script, port: int = 0) -> AsyncIterator[str]:
    """A server that shakes hands, and answers everything else with what the script says; ends with its connections."""

    async def serve(stream: trio.SocketStream) -> None:
        decoder = FrameDecoder()
        try:
            async with stream:
                while data := await stream.receive_some():
                    for frame in decoder.receive(data):
                        assert isinstance(frame, Frame)
                        for answer in _answers(frame.command, script):
                            await stream.send_all(encode(answer))
        except trio.BrokenResourceError:
            pass  # the replay has left, and the last it was told is on its way

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, port, host=HOST))
        yield f"pulsar://{HOST}:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


def _answers(command: BaseCommand, script: Script) -> Sequence[BaseCommand]:
    match command.type:
        case BaseCommand.CONNECT:
            return [replies.connected("scripted", command.connect.protocol_version, 5 << 20, _FEATURES)]
        case BaseCommand.PING:
            return [replies.pong()]
        case _:
            return script(command)
