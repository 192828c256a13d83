"""One running node: puts the parts together, starts them in order, and takes them down in order.

Start: store, watches, change feed, binary listener, admin API, node session; then the `ready` line. Stop: no more
connections, a grace for those that are live, then everything else.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import trio

from controller.classic import ClassicTransitions, Clients
from controller.garbage import GarbageCollector
from controller.leader import Around, LeaderCounters, LeaderSettings
from controller.leaders import Leaders
from controller.migration import Migrations
from controller.retention import Retention
from controller.transitions import TopicLimits, Transitions
from gateway.binding import open_sockets
from gateway.cycles import CycleCollector
from gateway.data_plane import DataParts, build_data_plane, segment_url
from gateway.feed_switch import FeedSwitch
from gateway.host_names import parse_host
from gateway.http.admission import AdmissionLimits
from gateway.http.app import build_app
from gateway.http.browsers import AdminHosts
from gateway.http.connection import ConnectionLimits
from gateway.http.ports import AdminPorts
from gateway.http.serve import serve_http
from gateway.http.turns import timed
from gateway.leader_probe import LeaderProbe
from gateway.listener import Listener, ListenerLimits
from gateway.logs import redact_url
from gateway.loop_lag import LoopLag
from gateway.metrics import Sources, page_of
from gateway.recorder.recorder import Recorder
from gateway.recorder.recording import recording_of
from gateway.settings import Settings
from gateway.supervision import supervised
from metadata import keys, scripts
from metadata.errors import RecordDamaged, TopicExists
from metadata.feed import ChangeFeed
from metadata.lanes import Timeouts
from metadata.leadership import Leaderships
from metadata.node_sessions import NodeSession, forget_sessions
from metadata.peers import Peers
from metadata.registrations import RegistrationLimits, Registrations
from metadata.scripts import Script
from metadata.store import TopicStore, open_store
from metadata.tasks import GuardedTasks
from metadata.unwrap import unwrapped
from protocol.names import PERSISTENT, NamespaceName, TopicName
from protocol.turns import SlowTurns
from segments.schemas import SchemaRegistry
from sessions.classic import ClassicService
from sessions.consumer_sessions import ConsumerSession
from sessions.consumers import ConsumerHub
from sessions.counters import Counters
from sessions.dialogue import Terms
from sessions.groups import NamespaceWatch
from sessions.hub import Hub
from sessions.hubs import Hubs
from sessions.namespaces import NamespaceWatches
from sessions.outbox import OutboxLimits
from sessions.points import Watch
from sessions.readback import ReadBack
from sessions.topic_lists import ListSurroundings, TopicLists

log = logging.getLogger(__name__)

FIRST_NAMESPACE: Final = NamespaceName("public", "default")
_GARBAGE_INTERVAL: Final = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a node that is up, for whoever started it."""

    pulsar_url: str
    http_url: str
    store: TopicStore
    feed: ChangeFeed
    hub: Hub
    namespaces: NamespaceWatches
    readback: ReadBack
    counters: Counters
    session: NodeSession
    peers: Peers
    leaders: Leaders
    consumers: ConsumerHub
    classic: ClassicService
    garbage: GarbageCollector
    data: DataParts
    recorder: Recorder | None
    listener: Listener
    stop_http: trio.Event
    failures: Counter[str]  # of its tasks, by their names
    draining: trio.Event

    def readiness(self) -> list[str]:
        """Why this node cannot serve, or should be sent nobody any more; empty when it can."""
        return _reasons(self.feed, self.draining)

    def drain(self) -> None:
        """Tell whoever asks for readiness to go elsewhere, and serve on."""
        self.draining.set()

    def stop(self) -> None:
        """Take no more connections; `start_node` returns when the live ones are seen off."""
        self.listener.stop()
        self.stop_http.set()


@asynccontextmanager
async def start_node(settings: Settings, store_url: str, *, alone: bool = False) -> AsyncIterator[Node]:
    """A node that is up inside the block; leaving the block takes it down, orderly after `Node.stop`.

    `alone`: nobody else can use the store, so whatever sessions it holds are those of nodes that are gone.
    """
    log.info("using the store %s", redact_url(store_url))
    timeouts = Timeouts(
        connect=settings.store_connect_timeout, silence=settings.store_timeout, patience=2 * settings.store_timeout
    )
    with unwrapped():
        async with (
            open_store(store_url, timeouts=timeouts, change_log_length=settings.change_log_length) as store,
            recording_of(settings, store) as recorder,
            trio.open_nursery() as background,
        ):
            await _ensure_namespace(store, FIRST_NAMESPACE)
            if alone:
                await forget_sessions(store)
            pulsar_sockets = await open_sockets(settings.listen.host, settings.listen.port)
            http_sockets = await open_sockets(settings.http.host, settings.http.port)
            pulsar_url = settings.advertise or _advertised("pulsar", pulsar_sockets)
            http_url = settings.advertise_http or _advertised("http", http_sockets)

            counters = Counters()
            turns = SlowTurns(settings.slow_turn)
            loop_lag, cycles = LoopLag(turns), CycleCollector(settings.gc_interval)
            tasks = GuardedTasks(background)
            draining = trio.Event()
            limits = TopicLimits(
                settings.max_segments, settings.max_properties, settings.max_property_size, settings.max_partitions
            )
            transitions = Transitions(store, limits, auto_create=settings.auto_create)
            registrations = Registrations(store, RegistrationLimits(settings.max_subscriptions, settings.max_consumers))
            leaderships = Leaderships(store)

            async def attached(topic: TopicName) -> Clients:
                traffic = await data.port.classic_traffic(topic)
                return Clients(traffic.clients, traffic.managed)

            classic = ClassicTransitions(store, limits, auto_create=settings.auto_create, attached=attached)
            schemas = SchemaRegistry(store)
            readback = ReadBack(
                nursery=tasks,
                read=lambda topics: classic.topics.read_either(feed.lane, topics),
                trusted=lambda bucket: feed.trusted(bucket),
                route=lambda bucket: store.directory.owner(keys.BUCKET_SLOTS[bucket]),
            )
            hub = Hub(
                nursery=tasks,
                readback=readback,
                create=lambda topic: _create_if_missing(transitions, classic, topic),
                owner_url=pulsar_url,
                segment_url=lambda log, owner: segment_url(peers)(log, owner),
                auto_create=settings.auto_create,
                deletion_notice=settings.deletion_notice,
            )
            namespaces = NamespaceWatches(
                nursery=tasks,
                readback=readback,
                store=store,
                lane=lambda: feed.lane,
                whole=lambda: feed.whole,
                window=settings.coalesce,
                frame_limit=settings.max_message_size,
            )
            topic_lists = TopicLists(
                ListSurroundings(
                    nursery=tasks,
                    topics=classic.topics,
                    lane=lambda: feed.lane,
                    trusted=lambda bucket: feed.trusted(bucket),
                    whole=lambda: feed.whole,
                    window=settings.coalesce,
                    frame_limit=settings.max_message_size,
                )
            )
            questions = ClassicService(
                nursery=tasks,
                store=store,
                topics=classic.topics,
                lists=topic_lists,
                auto_create=settings.auto_create,
                frame_limit=settings.max_message_size,
                turns=turns,
            )

            def written(bucket: int, path: str, script: Script) -> None:
                # A classic topic is none of a namespace watch, but its layout may be watched.
                if script not in scripts.OF_CLASSIC_ONLY or hub.wants(bucket, path):
                    readback.written(bucket, path)
                if script in scripts.OF_CLASSIC:
                    topic_lists.written(bucket, path)

            store.on_write = written
            switch = FeedSwitch(readback)
            switch.add_of_classic(hub.classic)
            session = NodeSession(store, lease=settings.session_lease, pulsar_url=pulsar_url, http_url=http_url)

            def rolled_back(buckets: Collection[int]) -> None:
                consumers.rolled_back(buckets)
                session.renounce()

            feed = ChangeFeed(
                store, switch, probe_interval=settings.probe_interval, on_rollback=rolled_back, observer=recorder
            )
            peers = Peers(
                store,
                session,
                lease=settings.session_lease,
                on_death=lambda dead: leaders.nodes_died(dead),
                on_change=hub.whereabouts.nodes_changed,
            )
            data = build_data_plane(
                settings,
                store=store,
                registrations=registrations,
                peers=peers,
                hub=lambda: hub,
                lane=lambda: feed.lane,
                classic=classic,
                schemas=schemas,
                retention=Retention(store, default=settings.retention),
                session_held=lambda: session.held,
                followed_since=lambda bucket: feed.followed_since(bucket),
                nursery=tasks,
                turns=turns,
            )
            leaders = Leaders(
                store,
                session,
                Around(
                    registrations=registrations,
                    leaderships=leaderships,
                    transitions=transitions,
                    segments=data.port,
                    peers=peers,
                    lane=lambda: feed.lane,
                    followed_since=feed.followed_since,
                    retention=Retention(store, default=settings.retention),
                    settings=LeaderSettings(
                        consumer_grace=settings.consumer_grace,
                        handover=settings.handover,
                        prune_interval=settings.prune_interval,
                        message_age=settings.message_age,
                    ),
                    counters=LeaderCounters(),
                ),
                nursery=tasks,
                sweep_interval=settings.prune_interval,
                jitter=settings.session_lease / 20,
                answers=LeaderProbe().answers,
            )
            garbage = GarbageCollector(store, interval=_GARBAGE_INTERVAL)
            consumers = ConsumerHub(
                nursery=tasks,
                registrations=registrations,
                lane=lambda: feed.lane,
                session=session,
                trusted=feed.trusted,
                ensure_led=leaders.ensure_led,
            )
            switch.add(consumers)
            switch.add(leaders)
            switch.add(topic_lists)
            switch.add(data.hosting)
            switch.add(data.plane.seats)
            hubs = Hubs(hub, namespaces, consumers, questions, data.plane)
            listener = _listener(settings, hubs, pulsar_url, counters, turns, tasks.failures)
            lanes = (*store.lanes, feed.lane)
            sources = Sources(
                counters,
                hub,
                namespaces,
                readback,
                feed,
                lanes,
                session,
                leaders,
                consumers,
                garbage,
                recorder,
                questions,
                loop_lag,
                turns,
                cycles,
                data,
                tasks.failures,
            )
            app = build_app(
                AdminPorts(
                    store=store,
                    transitions=transitions,
                    classic=classic,
                    migrations=Migrations(store, classic, limits),
                    registrations=registrations,
                    leaders=leaders,
                    leaderships=leaderships,
                    peers=peers,
                    segments=data.port,
                    garbage=garbage,
                    schemas=schemas,
                    readiness=lambda: _reasons(feed, draining),
                    metrics=lambda: page_of(sources),
                    admission=AdmissionLimits(settings.http_concurrency, settings.max_body),
                    hosts=_admin_hosts(settings, http_url),
                )
            )

            background.start_soon(supervised, "the change feed", feed.run, tasks.failures)
            background.start_soon(supervised, "the deletion notices", hub.run, tasks.failures)
            background.start_soon(
                supervised,
                "the whereabouts of segments",
                lambda: hub.whereabouts.run(lambda: feed.foreign_buckets > 0),
                tasks.failures,
            )
            background.start_soon(supervised, "the node session", session.run, tasks.failures)
            background.start_soon(supervised, "the view of other nodes", peers.run, tasks.failures)
            background.start_soon(supervised, "the leaderships", leaders.run, tasks.failures)
            background.start_soon(supervised, "the registered consumers", consumers.run, tasks.failures)
            background.start_soon(supervised, "the upkeep of segments", data.upkeep.run, tasks.failures)
            background.start_soon(supervised, "the neglected segments", data.caretaker.run, tasks.failures)
            background.start_soon(supervised, "the garbage collection", garbage.run, tasks.failures)
            background.start_soon(supervised, "the measuring of the event loop", loop_lag.run, tasks.failures)
            background.start_soon(supervised, "the collection of cycles", cycles.run, tasks.failures)
            if recorder is not None:
                if settings.record_values:
                    readback.add(recorder.values)
                background.start_soon(supervised, "the recorder", recorder.run, tasks.failures)
            async with trio.open_nursery() as serving:
                stop_http = trio.Event()
                serving.start_soon(listener.serve, pulsar_sockets)
                serving.start_soon(
                    serve_http,
                    timed(app, turns),
                    http_sockets,
                    _http_limits(settings),
                    stop_http,
                    counters.count_accept_error,
                )
                await _until_whole(feed, timeouts.patience)
                # Before that it can lead nothing.
                with trio.move_on_after(timeouts.patience):
                    await session.wait_held()
                yield Node(
                    pulsar_url,
                    http_url,
                    store,
                    feed,
                    hub,
                    namespaces,
                    readback,
                    counters,
                    session,
                    peers,
                    leaders,
                    consumers,
                    questions,
                    garbage,
                    data,
                    recorder,
                    listener,
                    stop_http,
                    tasks.failures,
                    draining,
                )
                if not stop_http.is_set():
                    serving.cancel_scope.cancel()
            with trio.move_on_after(timeouts.patience):
                await data.hosting.release_all()
            await leaders.resign()
            background.cancel_scope.cancel()


def _http_limits(settings: Settings) -> ConnectionLimits:
    return ConnectionLimits(
        stall_limit=settings.stall_limit,
        shutdown_grace=settings.shutdown_grace,
        answer_bytes=settings.outbox_total_limit,
    )


def _admin_hosts(settings: Settings, http_url: str) -> AdminHosts:
    """Names that no stranger can make mean this server: those it was given, those it gives itself, its machine's."""
    own = (settings.http.host, urlsplit(http_url).hostname or "", socket.gethostname())
    names = list(settings.admin_hosts or ())
    for host in own:
        with suppress(ValueError):  # empty for all interfaces, and a machine may be called anything
            names.append(parse_host(host))
    return AdminHosts.of(names)


def _listener(
    settings: Settings,
    hubs: Hubs[Watch, NamespaceWatch, ConsumerSession],
    pulsar_url: str,
    counters: Counters,
    turns: SlowTurns,
    failures: Counter[str],
) -> Listener:
    return Listener(
        hubs,
        Terms(
            pulsar_url,
            max_message_size=settings.max_message_size,
            max_watches=settings.max_watches_per_connection,
            max_filters=settings.max_filters,
            max_filter_size=settings.max_property_size,
            max_watch_bytes=settings.watch_total_limit // 4,
        ),
        ListenerLimits(
            max_connections=settings.max_connections,
            max_connections_per_address=settings.max_connections_per_address,
            opens_per_second=settings.max_opens_per_second,
            handshake_timeout=settings.handshake_timeout,
            keep_alive=settings.keep_alive,
            shutdown_grace=settings.shutdown_grace,
            receive_total=settings.receive_total_limit,
            watch_total=settings.watch_total_limit,
        ),
        OutboxLimits(
            stall_limit=settings.stall_limit,
            reply_backlog=settings.outbox_limit,
            total_bytes=settings.outbox_total_limit,
        ),
        counters,
        turns,
        failures,
    )


async def _create_if_missing(transitions: Transitions, classic: ClassicTransitions, topic: TopicName) -> None:
    """Where there is a topic of either kind by then, that one will do."""
    try:
        if topic.domain == PERSISTENT:
            await classic.provide(topic)
        else:
            await transitions.create(topic, 1)
    except TopicExists:
        pass


async def _ensure_namespace(store: TopicStore, namespace: NamespaceName) -> None:
    """A list of namespaces that cannot be read costs those who ask for it: topics are served without."""
    try:
        await store.ensure_namespace(namespace)
    except RecordDamaged as error:
        log.error("the namespace %s cannot be looked up: %s", namespace, error)


async def _until_whole(feed: ChangeFeed, limit: float) -> None:
    """Wait for the whole store to be followed. A part of a cluster may be down: then we serve the rest, not ready."""
    with trio.move_on_after(limit):
        await feed.wait_whole()
        return
    log.warning("serving without the whole store: %s", "; ".join(_doubts(feed)))


def _reasons(feed: ChangeFeed, draining: trio.Event) -> list[str]:
    return [*(("draining: the server is about to stop",) if draining.is_set() else ()), *_doubts(feed)]


def _doubts(feed: ChangeFeed) -> list[str]:
    doubts = []
    if feed.away_buckets:
        doubts.append(f"the store is away for {feed.away_buckets} of {keys.BUCKETS} buckets")
    if feed.foreign_buckets:
        doubts.append(
            f"the store has lost its identity in {feed.foreign_buckets} of {keys.BUCKETS} buckets: restore its data, "
            "or restart Vela to accept it as it is"
        )
    return doubts + feed.doubts


def _advertised(scheme: str, bound: Sequence[socket.socket]) -> str:
    """The URL for others, from the bound address. A wildcard is no address to connect to: then the host's name."""
    host, port = bound[0].getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
        log.warning("telling others to connect to %s, the name of this host: set --advertise if it is wrong", host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
