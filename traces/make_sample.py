"""Records the sample trace: runs a real server with --record and changes topics there in a pattern made from a seed.

Run from the repository's root: python traces/make_sample.py --out traces/sample
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Literal

import httpx
import trio

from layout.layouts import Layout
from metadata.traces.directories import LOCK

_READY: Final = re.compile(r"ready pulsar://\S+ (http://\S+)\n")
_STOP_LIMIT: Final = 60.0
# Requests at the same time; more would only measure the server.
_CONNECTIONS: Final = 16
# A topic is left alone for so many seconds, so that its changes happen in the order in which they were planned.
_REST: Final = 0.25
_MOST_SEGMENTS: Final = 12

Verb = Literal["create", "delete", "split", "merge", "properties"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How a namespace behaves. The weights are those of creating, deleting, splitting, merging and properties."""

    namespace: str
    topics: int  # at the start
    per_second: float  # changes on a quiet day
    weights: tuple[int, int, int, int, int]
    words: tuple[str, ...]
    bursts: int = 0  # times that a job creates topics and removes them again
    burst_topics: int = 0


PROFILES: Final = (
    Profile("shop/orders", 40, 4.0, (2, 1, 5, 3, 4), ("placed", "paid", "packed", "returned", "invoice")),
    Profile("shop/payments", 18, 1.6, (1, 1, 3, 2, 4), ("card", "voucher", "refund", "settlement")),
    Profile("shop/carts", 10, 3.0, (5, 5, 0, 0, 1), ("cart", "wish", "guest"), bursts=3, burst_topics=45),
    Profile("logistics/parcels", 30, 2.4, (1, 0, 6, 4, 1), ("scan", "route", "handover", "claim")),
    Profile("logistics/fleet", 24, 1.2, (0, 0, 1, 1, 6), ("van", "bike", "truck", "depot")),
    Profile("media/uploads", 6, 0.8, (3, 3, 1, 0, 1), ("photo", "clip", "scan"), bursts=4, burst_topics=60),
    Profile("media/captions", 5, 0.4, (1, 1, 0, 0, 2), ("track", "draft")),
    Profile("energy/meters", 45, 0.6, (1, 0, 1, 0, 2), ("meter", "inverter", "grid")),
    Profile("energy/alarms", 4, 0.1, (1, 1, 0, 0, 1), ("alarm",), bursts=2, burst_topics=80),
    Profile("lab/trials", 3, 0.9, (4, 4, 1, 0, 1), ("trial",)),
)


@dataclass(frozen=True, slots=True)
class Act:
    """One request, so many seconds after the start."""

    at: float
    verb: Verb
    topic: str  # tenant/namespace/name
    segments: tuple[int, ...] = ()  # how many for a new topic, else which
    properties: Mapping[str, str] = field(default_factory=dict)


class Plan:
    """Invents requests that the server will take: it knows each topic's layout as it will be by then."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._layouts: dict[str, Layout] = {}
        self._free_at: dict[str, float] = {}
        self._deleted: dict[str, list[str]] = {profile.namespace: [] for profile in PROFILES}
        self._made = 0

    def base(self) -> list[Act]:
        """The topics that are there before the recording begins."""
        return [self._create(profile, 0.0) for profile in PROFILES for _ in range(profile.topics)]

    def acts(self, seconds: float) -> list[Act]:
        # Planned in the order of time, because each one depends on what those before it leave.
        planned = [step for profile in PROFILES for step in self._steps(profile, seconds)]
        found = []
        for at, _, step in sorted(planned, key=lambda each: each[:2]):
            found += step(at)
        return sorted(found, key=lambda act: act.at)

    def _steps(self, profile: Profile, seconds: float) -> Iterator[tuple[float, int, Callable[[float], list[Act]]]]:
        at = self._random.expovariate(profile.per_second)
        while at < seconds:
            self._made += 1
            yield at, self._made, lambda now: self._ordinary(profile, now)
            at += self._random.expovariate(profile.per_second)
        for burst in range(profile.bursts):
            # Spread over the time, with room at its end for the topics to go again.
            begin = (burst + self._random.uniform(0.2, 0.6)) * seconds / profile.bursts
            self._made += 1
            yield begin, self._made, lambda now: self._burst(profile, now)

    def _ordinary(self, profile: Profile, now: float) -> list[Act]:
        verbs: tuple[Verb, ...] = ("create", "delete", "split", "merge", "properties")
        (verb,) = self._random.choices(verbs, profile.weights)
        if verb == "create":
            return [self._create(profile, now)]
        known = [
            topic
            for topic in self._layouts
            if topic.startswith(f"{profile.namespace}/") and self._free_at[topic] <= now
        ]
        if not known:
            return []
        # Some topics are much busier than others.
        topic = known[int(len(known) * self._random.random() ** 2)]
        self._free_at[topic] = now + _REST
        layout = self._layouts[topic]
        if verb == "delete":
            return [self._delete(profile, topic, now)]
        if verb == "split" and len(layout.active) < _MOST_SEGMENTS:
            segment = self._random.choice(layout.active).segment_id
            self._layouts[topic] = layout.split(segment, 0)
            return [Act(now, "split", topic, (segment,))]
        if verb == "merge" and len(layout.active) > 1:
            left = self._random.randrange(len(layout.active) - 1)
            first, second = (segment.segment_id for segment in layout.active[left : left + 2])
            self._layouts[topic] = layout.merge(first, second, 0)
            return [Act(now, "merge", topic, (first, second))]
        return [Act(now, "properties", topic, properties=self._properties())]

    def _burst(self, profile: Profile, now: float) -> list[Act]:
        """A job: topics come within a second, and go some seconds later, faster still."""
        found = []
        stay = self._random.uniform(4, 9)
        for _ in range(profile.burst_topics):
            act = self._create(profile, now + self._random.expovariate(4.0))
            self._free_at[act.topic] = float("inf")
            found += [act, self._delete(profile, act.topic, now + stay + self._random.expovariate(8.0))]
        return found

    def _create(self, profile: Profile, now: float) -> Act:
        deleted = self._deleted[profile.namespace]
        again = [topic for topic in deleted if self._free_at[topic] <= now]
        if again and self._random.random() < 0.4:
            topic = self._random.choice(again)
            deleted.remove(topic)
        else:
            self._made += 1
            topic = f"{profile.namespace}/{self._random.choice(profile.words)}-{self._made:04d}"
        segments = self._random.choice((1, 1, 1, 2, 4))
        self._layouts[topic] = Layout.create(segments, 0)
        self._free_at[topic] = now + _REST
        return Act(now, "create", topic, (segments,), self._properties())

    def _delete(self, profile: Profile, topic: str, now: float) -> Act:
        del self._layouts[topic]
        self._free_at[topic] = now + _REST
        self._deleted[profile.namespace].append(topic)
        return Act(now, "delete", topic)

    def _properties(self) -> dict[str, str]:
        choices = {
            "team": ("amber", "birch", "cedar", "dune"),
            "tier": ("gold", "silver"),
            "region": ("north", "south", "east"),
        }
        return {name: self._random.choice(values) for name, values in choices.items() if self._random.random() < 0.6}


@contextmanager
def server(data: Path, *flags: str) -> Iterator[str]:
    """`vela serve` on free ports; its admin URL."""
    vela = Path(sys.executable).with_name("vela")
    command = [
        str(vela),
        "serve",
        "--listen=127.0.0.1:0",
        "--http=127.0.0.1:0",
        f"--data-dir={data}",
        "--log-level=warning",
    ]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = _READY.fullmatch(process.stdout.readline())
            if ready is None:
                raise SystemExit("The server did not start; what it said stands above.")
            yield ready[1]
        finally:
            process.terminate()
            process.wait(_STOP_LIMIT)


async def carry_out(url: str, acts: list[Act]) -> None:
    """Send every request when it is due."""
    limits = httpx.Limits(max_connections=_CONNECTIONS)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30, trust_env=False) as client:
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for act in acts:
                await trio.sleep_until(start + act.at)
                nursery.start_soon(_send, client, act)


async def _send(client: httpx.AsyncClient, act: Act) -> None:
    path = f"/admin/v2/scalable/{act.topic}"
    match act.verb:
        case "create":
            answer = await client.put(f"{path}?numInitialSegments={act.segments[0]}", json=act.properties)
        case "delete":
            answer = await client.delete(f"{path}?force=true")
        case "properties":
            answer = await client.put(f"{path}/properties", json=act.properties)
        case "split" | "merge":
            answer = await client.post("/".join((path, act.verb, *map(str, act.segments))))
    if answer.status_code != 204:
        raise SystemExit(f"The server refused {act}: {answer.status_code} {answer.text}")


async def create_namespaces(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        for profile in PROFILES:
            (await client.put(f"/admin/v2/namespaces/{profile.namespace}")).raise_for_status()


def main() -> None:
    parser = argparse.ArgumentParser(description="Record the sample trace.")
    parser.add_argument("--out", type=Path, required=True, help="a directory that is not there yet")
    parser.add_argument("--seconds", type=float, default=210.0, help="how long it is recorded")
    parser.add_argument("--seed", type=int, default=5)
    asked = parser.parse_args()
    if asked.out.exists():
        parser.error(f"{asked.out} is there already: remove it first")
    plan = Plan(asked.seed)
    with tempfile.TemporaryDirectory(prefix="vela-sample-") as scratch:
        data, recorded = Path(scratch, "data"), Path(scratch, "trace")
        with server(data) as url:
            trio.run(create_namespaces, url)
            trio.run(carry_out, url, plan.base())
        with server(data, f"--record={recorded}", "--record-part-time=90s") as url:
            trio.run(carry_out, url, plan.acts(asked.seconds))
        (recorded / LOCK).unlink()
        shutil.copytree(recorded, asked.out)


if __name__ == "__main__":
    main()
