"""The admin API over a real store, served on a free port, with a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import trio
from litestar.types import ASGIApp

from controller.classic import Attached, ClassicTransitions, nobody_attached
from controller.garbage import GarbageCollector
from controller.leader import Around, LeaderCounters, LeaderSettings
from controller.leaders import Leaders
from controller.migration import Migrations
from controller.retention import Retention
from controller.segment_port import SegmentPort
from controller.transitions import TopicLimits, Transitions
from gateway.binding import open_sockets
from gateway.http.admission import AdmissionLimits
from gateway.http.app import build_app
from gateway.http.connection import ConnectionLimits
from gateway.http.ports import AdminPorts
from gateway.http.serve import serve_http
from gateway.quantities import HostPort
from metadata.lanes import Timeouts
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeSession
from metadata.peers import Peers
from metadata.registrations import Registrations
from metadata.store import TopicStore, open_store
from segments.schemas import SchemaRegistry
from tests.support.unwritten_segments import UnwrittenSegments
from tests.support.waiting import eventually

SCALABLE = "/admin/v2/scalable/public/default"
JSON = {"content-type": "application/json"}
# What other nodes would be told about this one.
PULSAR_URL = "pulsar://here.example:6650"
HTTP_URL = "http://here.example:8080"
LEASE = 10.0


@dataclass
class Api:
    """One running API; `reasons` is what its readiness reports."""

    client: httpx.AsyncClient
    address: HostPort
    store: TopicStore
    transitions: Transitions
    classic: ClassicTransitions
    registrations: Registrations
    session: NodeSession
    leaders: Leaders
    garbage: GarbageCollector
    reasons: list[str]
    stop: trio.Event

    async def call(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """As Pulsar's clients do it: PUT and POST say JSON even without a body."""
        headers = dict(kwargs.pop("headers", {}))
        if method in {"PUT", "POST"}:
            headers = JSON | headers
        return await self.client.request(method, path, headers=headers, **kwargs)


async def raw_exchange(address: HostPort, request: bytes) -> bytes:
    """All that comes back for these bytes until the server closes."""
    async with await trio.open_tcp_stream(address.host, address.port) as stream:
        await stream.send_all(request)
        return b"".join([part async for part in stream])


@asynccontextmanager
async def served(
    app: ASGIApp, *, stop: trio.Event | None = None, limits: ConnectionLimits | None = None
) -> AsyncIterator[HostPort]:
    stop = trio.Event() if stop is None else stop
    async with trio.open_nursery() as nursery:
        listening = await open_sockets("127.0.0.1", 0)
        nursery.start_soon(serve_http, app, listening, limits or ConnectionLimits(shutdown_grace=1), stop)
        yield HostPort(*listening[0].getsockname()[:2])
        stop.set()


@asynccontextmanager
async def running_api(
    url: str,
    *,
    limits: TopicLimits | None = None,
    auto_create: bool = True,
    admission: AdmissionLimits | None = None,
    timeouts: Timeouts | None = None,
    segments: SegmentPort | None = None,
    attached: Attached = nobody_attached,
) -> AsyncIterator[Api]:
    """With all that leads topics, but without a feed: leaders look when they are asked to do something."""
    stop = trio.Event()
    reasons: list[str] = []
    async with open_store(url, timeouts=timeouts) as store, trio.open_nursery() as background:
        transitions = Transitions(store, limits or TopicLimits(), auto_create=auto_create)
        registrations, leaderships = Registrations(store), Leaderships(store)
        session = NodeSession(store, lease=LEASE, pulsar_url=PULSAR_URL, http_url=HTTP_URL)
        peers = Peers(store, session, lease=LEASE, on_death=lambda _: None)
        segments = segments or UnwrittenSegments()
        around = Around(
            registrations=registrations,
            leaderships=leaderships,
            transitions=transitions,
            segments=segments,
            peers=peers,
            lane=lambda: store.commands,
            followed_since=lambda _: float("-inf"),
            retention=Retention(store, default=3600),
            settings=LeaderSettings(),
            counters=LeaderCounters(),
        )
        leaders = Leaders(store, session, around, nursery=background, sweep_interval=3600, jitter=0)
        garbage = GarbageCollector(store, interval=3600)
        classic = ClassicTransitions(store, limits or TopicLimits(), auto_create=auto_create, attached=attached)
        ports = AdminPorts(
            store=store,
            transitions=transitions,
            classic=classic,
            migrations=Migrations(store, classic, limits or TopicLimits()),
            registrations=registrations,
            leaders=leaders,
            leaderships=leaderships,
            peers=peers,
            segments=segments,
            garbage=garbage,
            schemas=SchemaRegistry(store),
            readiness=lambda: list(reasons),
            metrics=lambda: b"vela_up 1\n",
            admission=admission or AdmissionLimits(),
        )
        for task in (session.run, peers.run, garbage.run):
            background.start_soon(task)
        await eventually(lambda: session.held)
        async with (
            served(build_app(ports), stop=stop) as address,
            # Without TLS there is nothing to verify, and loading the certificates for it takes longer than most tests.
            httpx.AsyncClient(base_url=f"http://{address}", timeout=30, verify=False) as client,
        ):
            yield Api(
                client, address, store, transitions, classic, registrations, session, leaders, garbage, reasons, stop
            )
        background.cancel_scope.cancel()


def reason_of(response: httpx.Response) -> str:
    """The reason of a refusal, which must be all that its body holds."""
    assert response.headers["content-type"] == "application/json"
    content = response.json()
    assert list(content) == ["reason"]
    assert "Traceback" not in content["reason"]
    return str(content["reason"])
