"""Which logs a node has, and what it learns about them when calls to the store fail."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from metadata.errors import StoreUnavailable
from metadata.log_places import LogPlace
from metadata.log_states import LogState
from metadata.segment_logs import SegmentLogs
from protocol.names import TopicName
from segments.hosting import Hosting
from segments.open_log import Around, DataCounters, LogLimits
from segments.tail import Budget
from tests.support.logs import PLACE, TOPIC, A, LogBench, log_bench
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

LIMIT: Final = 10.0


@dataclass(frozen=True, slots=True)
class Alone:
    """A node without others."""

    session: str = A
    pulsar_url: str = "pulsar://here:6650"

    @property
    def nodes(self) -> list[Alone]:
        return [self]

    async def is_alive(self, session: str) -> bool:
        return session == self.session


class FalteringLogs(SegmentLogs):
    """Looks at a log fail as often as told."""

    failures = 0

    async def state(self, place: LogPlace) -> LogState | None:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("The store does not answer now.")
        return await super().state(place)


@dataclass(frozen=True, slots=True)
class HostBench:
    bench: LogBench
    logs: FalteringLogs
    hosting: Hosting


class NoClassicLogs:
    async def provide(self, topic: TopicName) -> None:
        raise AssertionError(f"nobody asks for {topic}")


@asynccontextmanager
async def host_bench(url: str) -> AsyncIterator[HostBench]:
    async def told(_: LogPlace) -> None:
        await trio.lowlevel.checkpoint()

    async def nobody(_: TopicName) -> Collection[str]:
        return ()

    async def always(_: LogPlace) -> int:
        return -1

    async with log_bench(url) as bench, trio.open_nursery() as nursery:
        logs = FalteringLogs(bench.store)
        around = Around(logs, nursery, LogLimits(), DataCounters(), Budget(1_000_000), told)
        yield HostBench(bench, logs, Hosting(around, Alone(), NoClassicLogs(), nobody, always, rebalance_interval=1))
        nursery.cancel_scope.cancel()


async def test_look_that_fails_is_repeated_although_no_change_was_missed(valkey: ValkeyProcess) -> None:
    async with host_bench(valkey.url) as b:
        owned = await b.hosting.open(PLACE.name)
        b.logs.failures = 3
        await b.bench.transitions.split(TOPIC, 0)
        b.hosting.changed(PLACE.bucket, PLACE.path)
        await eventually(lambda: owned.sealed, LIMIT)
