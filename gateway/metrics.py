"""The Prometheus page, made from the plain counters of each part when it is asked for. No label grows with topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from controller.garbage import GarbageCollector
from controller.leaders import Leaders
from gateway.cycles import CycleCollector
from gateway.data_plane import DataParts
from gateway.histograms import Durations
from gateway.loop_lag import LoopLag
from gateway.recorder.recorder import Recorder
from metadata.feed import ChangeFeed
from metadata.lanes import Lane
from metadata.node_sessions import NodeSession
from protocol.turns import SlowTurns
from sessions.classic import ClassicService
from sessions.consumers import ConsumerHub
from sessions.counters import Counters
from sessions.hub import Hub
from sessions.namespaces import NamespaceWatches
from sessions.readback import ReadBack

# Read-backs take at most 256 records.
_BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Sources:
    """Whose counters are shown."""

    counters: Counters
    hub: Hub
    namespaces: NamespaceWatches
    readback: ReadBack
    feed: ChangeFeed
    lanes: tuple[Lane, ...]
    session: NodeSession
    leaders: Leaders
    consumers: ConsumerHub
    garbage: GarbageCollector
    recorder: Recorder | None
    classic: ClassicService
    loop_lag: LoopLag
    turns: SlowTurns
    cycles: CycleCollector
    data: DataParts | None = None
    task_failures: Mapping[str, int] = field(default_factory=dict)


def page_of(sources: Sources) -> bytes:
    """The exposition text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_VelaCollector(sources))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return bytes(generate_latest(registry))


class _VelaCollector(Collector):
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        yield from self._loop()
        yield from self._sockets()
        yield from self._watches()
        yield from self._classic()
        yield from self._controller()
        yield from self._store()
        if self._sources.data is not None:
            yield from _messages(self._sources.data)
        if self._sources.recorder is not None:
            yield from _recording(self._sources.recorder)

    def _loop(self) -> Iterator[Metric]:
        yield from _durations(
            "loop_lag", "How late the event loop comes to what is due.", self._sources.loop_lag.durations
        )
        yield _labelled(
            "slow_turns",
            "Turns of the event loop above slow_turn, by what they were for.",
            "work",
            self._sources.turns.counts.items(),
        )
        yield from _durations(
            "gc_pause", "Collections of cyclic garbage, while nothing else runs.", self._sources.cycles.pauses
        )

    def _sockets(self) -> Iterator[Metric]:
        counters = self._sources.counters
        yield _gauge("connections", "Open client connections.", counters.connections)
        yield _counter("connections_accepted", "Client connections accepted.", counters.accepted)
        yield _counter("connections_refused", "Client connections over the limit.", counters.refused)
        yield _counter(
            "accept_errors", "Accepts that failed, for want of file descriptors mostly.", counters.accept_errors
        )
        yield _labelled("connections_closed", "Ended connections.", "reason", counters.closes.items())
        yield _labelled("bad_frames", "Frames that ended their connection.", "kind", counters.bad_frames.items())
        yield _counter("unknown_commands", "Commands of a newer protocol, ignored.", counters.unknown_commands)
        yield _labelled(
            "pushes",
            "DAG frames by how they went out: at once, after waiting, or replaced by a newer one.",
            "way",
            (
                ("direct", counters.pushes_direct),
                ("queued", counters.pushes_queued),
                ("replaced", counters.pushes_replaced),
            ),
        )
        yield _gauge("outbox_bytes", "Bytes that wait for slow clients.", counters.outbox_bytes)
        yield _gauge("receive_bytes", "Bytes of frames that have arrived in part.", counters.receive_bytes)
        watching = 0 if counters.watching is None else counters.watching.total
        yield _gauge("watch_bytes", "Bytes that watches and registered consumers take, about.", watching)
        yield _counter("stalls", "Clients cut because they took nothing.", counters.stalls)
        yield _counter(
            "connection_errors", "Connections ended by a fault of ours; each is in the log.", counters.errors
        )
        failures = self._sources.task_failures
        yield _labelled(
            "task_failures", "Tasks ended by a fault of ours; each is in the log.", "task", failures.items()
        )

    def _watches(self) -> Iterator[Metric]:
        hub = self._sources.hub.counters
        yield _gauge("watches", "Open DAG watches.", hub.watches)
        yield _gauge("watched_topics", "Topics with at least one DAG watch.", hub.points)
        sets = self._sources.namespaces.counters
        yield _gauge("namespace_watches", "Open namespace watches.", sets.watches)
        yield _gauge("namespace_groups", "Distinct namespaces and filters that are watched.", sets.groups)
        yield _counter("namespace_listings", "Listings of one bucket for one group.", sets.listings)
        yield _counter("filter_evaluations", "Evaluations of a group's filters on one topic.", sets.evaluations)
        yield _counter("snapshots_spared", "Namespace watches whose hash matched.", sets.hash_matches)
        reads = self._sources.readback.counters
        yield _counter("read_backs", "Records read because they changed or might have.", reads.reads)
        yield _counter("read_back_failures", "Read-backs that the store did not answer.", reads.failed)
        yield _batch_sizes(reads.batches, reads.reads)
        yield _counter("states_gone_back", "Reads that showed an older state than before.", hub.went_back)
        yield _counter("unreadable_records", "Records that could not be decoded.", hub.unreadable)
        yield _counter("deletions_told", "Watches told that their topic is gone.", hub.deletions)

    def _classic(self) -> Iterator[Metric]:
        classic = self._sources.classic
        asked = classic.counters
        yield _counter("classic_questions", "Questions about partitions and lists of classic topics.", asked.asked)
        yield _counter("classic_refusals", "Of those, and of watches of lists, how many were refused.", asked.refused)
        yield _counter("classic_listings", "Listings of a namespace for those questions.", asked.listings)
        lists = classic.lists.counters
        yield _gauge("list_watches", "Open watches of lists of classic topics.", lists.watches)
        yield _gauge("list_patterns", "Distinct namespaces and patterns among them.", lists.patterns)
        yield _counter("list_reads", "Reads of one bucket's index for them.", lists.listings)
        yield _counter("lists_spared", "Watches of lists whose hash matched.", lists.hash_matches)

    def _controller(self) -> Iterator[Metric]:
        consumers = self._sources.consumers.counters
        yield _gauge("registered_consumers", "Consumers registered over connections of this node.", consumers.consumers)
        yield _counter("consumer_registrations", "Registrations and re-registrations written.", consumers.attached)
        yield _counter("consumer_refusals", "Registrations refused for good.", consumers.refused)
        yield _counter("assignment_pushes", "Changed assignments sent to consumers.", consumers.pushes)
        leaders = self._sources.leaders
        yield _gauge("led_topics", "Topics that this node leads.", len(leaders))
        counters = leaders.counters
        yield _counter("leader_rounds", "Times that a leader compared what is with what should be.", counters.rounds)
        yield _counter("rebalances", "Changes of assignments written.", counters.rebalances)
        yield _counter("consumers_reassigned", "Consumers given another assignment.", counters.assigned)
        yield _counter("consumers_evicted", "Consumers that stayed away for too long.", counters.evictions)
        yield _counter("segments_pruned", "Sealed segments forgotten.", counters.pruned)
        yield _counter("leaderships_lost", "Times that another node had taken over.", counters.fenced)
        yield _counter("garbage_collected", "Segments whose storage was deleted.", self._sources.garbage.collected)

    def _store(self) -> Iterator[Metric]:
        feed = self._sources.feed
        counters = feed.counters
        yield _labelled("gaps", "Moments after which everything was read again.", "cause", counters.gaps.items())
        yield _counter("rollbacks", "Times that the store had lost what was read of it.", counters.rollbacks)
        yield _counter("bells", "Keyspace notifications of change logs.", counters.bells)
        yield _counter("lost_bells", "Changes that no notification announced.", counters.lost_bells)
        yield _counter("changes", "Change log entries taken in.", counters.changes)
        yield _counter("feed_probes", "Comparisons of all change log tails.", counters.probes)
        yield _counter("notification_repairs", "Times that notifications were found to be off.", counters.flag_repairs)
        yield _gauge("buckets_away", "Buckets that are not followed now.", feed.away_buckets)
        yield _gauge("buckets_foreign", "Buckets that no longer carry the mark of our store.", feed.foreign_buckets)
        round_trip = GaugeMetricFamily(
            "vela_store_round_trip_seconds", "The last timed call of each lane.", labels=["lane"]
        )
        for lane in self._sources.lanes:
            round_trip.add_metric([lane.name], lane.round_trip)
        yield round_trip
        for name, text, attribute in (
            ("store_connections_opened", "Connections made to the store.", "opened"),
            ("store_connections_lost", "Connections to the store that ended.", "lost"),
            ("store_redirects", "Calls that the cluster sent elsewhere.", "redirects"),
            ("store_retries", "Calls that were tried again.", "retries"),
        ):
            values = ((lane.name, int(getattr(lane.counters, attribute))) for lane in self._sources.lanes)
            yield _labelled(name, text, "lane", values)
        yield _counter(
            "node_sessions_lost", "Node sessions that ran out or were given up.", self._sources.session.sessions_lost
        )


def _messages(data: DataParts) -> Iterator[Metric]:
    logs = data.hosting.logs
    counters = data.counters
    yield _gauge("logs_owned", "Segments and classic topics that this node serves.", len(logs))
    yield _gauge("producers", "Producers connected to this node.", sum(len(log.sending.producers) for log in logs))
    yield _gauge(
        "log_consumers",
        "Consumers connected to segments and classic topics of this node.",
        sum(len(subscription.consumers) for log in logs for subscription in log.subscriptions.values()),
    )
    yield _counter("messages_in", "Messages stored.", counters.messages_in)
    yield _counter("message_bytes_in", "Bytes of messages stored.", counters.bytes_in)
    yield _counter("messages_repeated", "Messages sent again, and not stored again.", counters.duplicates)
    yield _counter("messages_refused", "Messages refused.", counters.send_errors)
    yield _counter("messages_out", "Messages sent to consumers.", counters.messages_out)
    yield _counter("message_bytes_out", "Bytes of messages sent to consumers.", counters.bytes_out)
    yield _counter("logs_opened", "Segments and classic topics that this node took.", counters.opened)
    yield _counter("logs_lost", "Segments and classic topics lost to another node or to a deletion.", counters.lost)


def _recording(recorder: Recorder) -> Iterator[Metric]:
    yield _counter("recorder_events", "Events written to the trace.", recorder.written.events)
    yield _counter("recorder_dropped", "Changes that the trace lacks for want of room.", recorder.counters.dropped)
    yield _counter(
        "recorder_values_missing", "Records that the trace lacks for want of room.", recorder.counters.values_missing
    )
    yield _counter("recorder_errors", "Attempts to write the trace that failed.", recorder.written.errors)
    yield _gauge("recorder_queue", "Events that wait to be written to the trace.", recorder.queued)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"vela_{name}", text, value=value)


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"vela_{name}", text, value=value)


def _labelled(name: str, text: str, label: str, values: Iterable[tuple[str, int]]) -> Metric:
    family = CounterMetricFamily(f"vela_{name}", text, labels=[label])
    for key, value in values:
        family.add_metric([str(key)], value)
    return family


def _durations(name: str, text: str, durations: Durations) -> Iterator[Metric]:
    family = HistogramMetricFamily(f"vela_{name}_seconds", text)
    family.add_metric([], list(durations.buckets()), sum_value=durations.total)
    yield family
    yield _gauge(f"{name}_longest_seconds", f"{text} The longest since the last scrape.", durations.take_longest())


def _batch_sizes(batches: dict[int, int], total: int) -> Metric:
    seen = 0
    buckets = []
    for bound in _BATCH_BOUNDS:
        seen += batches.get(bound, 0)
        buckets.append((f"{bound:.1f}", float(seen)))
    buckets.append(("+Inf", float(seen)))
    family = HistogramMetricFamily("vela_read_back_batch", "Records per read-back.")
    family.add_metric([], buckets, sum_value=total)
    return family
