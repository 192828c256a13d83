"""How what the server pushes is shown, to people and to programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import datetime
from typing import Any

from gateway.cli.graph_words import printable
from protocol.client import Change, NamespaceEvent, Snapshot
from protocol.wire import pulsar_api_pb2 as api

# A terminal shows this many segments or topics of a whole state; the rest is counted.
SHOWN = 16


def describe_layout(
    push: api.CommandScalableTopicUpdate, previous: api.ScalableTopicDAG | None, now: datetime
) -> Iterator[str]:
    """A push for people: one line with what happened, then the active segments with their owners."""
    active, sealed = _by_state(push.dag)
    news = "; ".join(_changes(previous, push.dag)) if previous is not None else push.resolved_topic_name
    yield f"{_moment(now)}  epoch {push.dag.epoch}  {len(active)} active, {len(sealed)} sealed  {news}".rstrip()
    brokers = {broker.segment_id: broker.broker_url_tls or broker.broker_url for broker in push.dag.segment_brokers}
    yield from _first(
        [
            f"{segment.segment_id:>6}  {segment.hash_start:04x}-{segment.hash_end:04x}"
            f"  {brokers.get(segment.segment_id, 'no owner yet')}"
            for segment in active
        ]
    )


def layout_as_object(push: api.CommandScalableTopicUpdate, now: datetime) -> Mapping[str, Any]:
    """A push for programs, with the field names of the admin API."""
    brokers = {broker.segment_id: broker.broker_url_tls or broker.broker_url for broker in push.dag.segment_brokers}
    return {
        "time": _timestamp(now),
        "topic": push.resolved_topic_name,
        "epoch": push.dag.epoch,
        "controllerBrokerUrl": push.dag.controller_broker_url or push.dag.controller_broker_url_tls or None,
        "segments": [
            {
                "segmentId": segment.segment_id,
                "hashRange": {"start": segment.hash_start, "end": segment.hash_end},
                "state": api.SegmentState.Name(segment.state),
                "parentIds": list(segment.parent_ids),
                "childIds": list(segment.child_ids),
                "brokerUrl": brokers.get(segment.segment_id),
            }
            for segment in push.dag.segments
        ],
    }


def describe_snapshot(event: Snapshot, known: Set[str] | None, namespace: str, now: datetime) -> Iterator[str]:
    """A namespace for people: how many topics there are, and which; of a known one only what came and went."""
    count = f"{_moment(now)}  {len(event.topics)} topic{'' if len(event.topics) == 1 else 's'} in {namespace}"
    if known is None:
        yield count
        yield from _first([printable(topic) for topic in sorted(event.topics)])
    else:
        came, went = event.topics - known, known - event.topics
        yield f"{count}, {len(came)} came and {len(went)} went"
        yield from _first(
            [f"{sign} {printable(topic)}" for sign, topics in (("-", went), ("+", came)) for topic in sorted(topics)]
        )


def describe_change(event: Change, now: datetime) -> Iterator[str]:
    """One line for each topic that came or went."""
    moment, again = _moment(now), set(event.added) & set(event.removed)
    for topic in event.removed:
        if topic not in again:
            yield f"{moment}  - {printable(topic)}"
    for topic in event.added:
        yield f"{moment}  + {printable(topic)}{'  (deleted and created again)' if topic in again else ''}"


def event_as_object(event: NamespaceEvent, namespace: str, now: datetime) -> Mapping[str, Any]:
    """An event of a namespace for programs."""
    start = {"time": _timestamp(now), "namespace": namespace}
    if isinstance(event, Snapshot):
        return start | {"event": "snapshot", "topics": sorted(event.topics)}
    return start | {"event": "change", "added": list(event.added), "removed": list(event.removed)}


def _first(lines: Sequence[str]) -> Iterator[str]:
    for line in lines[:SHOWN]:
        yield f"  {line}"
    if len(lines) > SHOWN:
        yield f"  … and {len(lines) - SHOWN} more"


def _moment(now: datetime) -> str:
    return now.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _timestamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _by_state(dag: api.ScalableTopicDAG) -> tuple[list[api.SegmentInfoProto], list[api.SegmentInfoProto]]:
    active = [segment for segment in dag.segments if segment.state == api.ACTIVE]
    sealed = [segment for segment in dag.segments if segment.state != api.ACTIVE]
    return sorted(active, key=lambda segment: segment.hash_start), sealed


def _changes(before: api.ScalableTopicDAG, after: api.ScalableTopicDAG) -> Iterator[str]:
    known = {segment.segment_id for segment in before.segments}
    came = [segment for segment in after.segments if segment.segment_id not in known]
    gone = known - {segment.segment_id for segment in after.segments}
    families: dict[tuple[int, ...], list[int]] = {}
    for segment in came:
        families.setdefault(tuple(segment.parent_ids), []).append(segment.segment_id)
    for parents, children in families.items():
        if not parents:
            yield f"new {_listed(children)}"
        else:
            yield f"{'merged' if len(parents) > 1 else 'split'} {_listed(parents)} into {_listed(children)}"
    if gone:
        yield f"gone {_listed(sorted(gone))}"
    if not came and not gone:
        yield "owners changed"


def _listed(ids: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, ids))
