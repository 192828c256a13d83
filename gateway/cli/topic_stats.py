"""What is known about a running topic, for people: who leads it, who owns its segments and who consumes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gateway.cli.answers import QUEUE, LayoutStats, SubscriptionStats, TopicStats, type_in_words, unassigned
from gateway.cli.terminal import amount, cell, is_narrow, moment, per_second, table

# With fewer columns, the type of a subscription stands below its name, and both only once.
_ROOM_FOR_CONSUMERS = 100


def overview(topic: str, stats: TopicStats) -> RenderableType:
    text = cell(topic, "bold")
    segments = stats.layout.segments.values()
    active = sum(segment.is_active for segment in segments)
    text.append(f"\nepoch {stats.layout.epoch}, {active} active and {len(segments) - active} sealed segments", "dim")
    text.append(f"\n{_traffic(stats)}", "dim")
    leader = stats.leader
    if leader is None:
        return text.append("\nnobody leads it now", "dim")
    text.append("\nled by ", "dim").append_text(cell(f"{leader.pulsar_url}, {leader.http_url}", "cyan"))
    return text.append("\n").append_text(cell(f"session {leader.session}, term {leader.term}", "dim"))


def _traffic(stats: TopicStats) -> str:
    """In one line what goes in and out, and what stays."""
    several = "" if len(stats.producers) == 1 else "s"
    return (
        f"{amount(stats.storage_size)} stored, {len(stats.producers):,} producer{several}, "
        f"{per_second(stats.msg_rate_in)} messages/s in ({amount(stats.byte_rate_in)}/s), "
        f"{per_second(stats.msg_rate_out)} out ({amount(stats.byte_rate_out)}/s)"
    )


def segment_table(layout: LayoutStats) -> Table:
    segments = layout.segments
    # Most topics have one in each segment, and then there is nothing to tell.
    buckets = ("buckets",) if any(segment.entry_buckets > 1 for segment in segments.values()) else ()
    numbers = ("segment", *buckets, "stored", "in/s", "out/s")
    made = table(
        *("segment", "range", "state", *buckets, "stored", "in/s", "out/s", "owner"),
        right=numbers,
        whole=(*numbers, "range", "state"),
    )
    for segment_id, segment in segments.items():
        made.add_row(
            str(segment_id),
            segment.hash_range,
            cell(segment.state.lower()),
            *([str(segment.entry_buckets)] if buckets else ()),
            amount(segment.storage_size),
            per_second(segment.msg_rate_in),
            per_second(segment.msg_rate_out),
            cell(segment.owner_broker or "none"),
            style=None if segment.is_active else "dim",
        )
    return made


def subscription_table(stats: TopicStats) -> RenderableType:
    if not stats.subscriptions:
        return Text("no subscriptions", "dim")
    numbers = ("backlog", "unacked", "out/s")
    counts = ("connected", "free segments")
    made = table("subscription", "type", *numbers, *counts, right=(*numbers, *counts), whole=("type", *numbers))
    for name, subscription in stats.subscriptions.items():
        connected = sum(consumer.connected for consumer in subscription.consumers)
        made.add_row(
            cell(name),
            cell(type_in_words(subscription.type)),
            f"{subscription.msg_backlog:,}",
            f"{subscription.unacked_messages:,}",
            per_second(subscription.msg_rate_out),
            f"{connected} of {len(subscription.consumers)}",
            _waiting(stats, subscription),
        )
    return made


def consumer_table(stats: TopicStats, subscriptions: Mapping[str, SubscriptionStats]) -> Table:
    """A row for each consumer, and one for the segments that nobody has."""
    headings = ("consumer", "connected", "segments", "address", "since")
    whole = ("type", "connected", "segments")
    if not is_narrow(_ROOM_FOR_CONSUMERS):
        made = table("subscription", "type", *headings, whole=whole)
        for name, subscription in subscriptions.items():
            for cells in _rows(stats, subscription):
                made.add_row(cell(name), cell(type_in_words(subscription.type)), *cells)
        return made
    made = table("subscription", *headings, whole=whole)
    for name, subscription in subscriptions.items():
        title = Text("\n").join((cell(name), cell(type_in_words(subscription.type), "dim")))
        for cells in _rows(stats, subscription):
            made.add_row(title, *cells)
            title = Text()
    return made


def consumers_as_object(
    content: bytes, stats: TopicStats, subscriptions: Mapping[str, SubscriptionStats]
) -> Mapping[str, Any]:
    """The same for programs: what the server said about them, and the segments that nobody has."""
    said = json.loads(content)
    return {
        "layout": said["layout"],
        "subscriptions": {
            name: said["subscriptions"][name] | {"unassignedSegmentIds": unassigned(stats, subscription)}
            for name, subscription in subscriptions.items()
        },
    }


def _rows(stats: TopicStats, subscription: SubscriptionStats) -> Iterator[tuple[RenderableType, ...]]:
    for consumer in subscription.consumers:
        yield (
            cell(consumer.consumer_name),
            Text("yes", "green") if consumer.connected else Text("no", "red"),
            "all, shared" if subscription.type == QUEUE else _segments(stats.layout, consumer.segment_ids) or "none",
            cell(consumer.address or ""),
            cell(_since(consumer.connected_since)),
        )
    free = unassigned(stats, subscription)
    if free or not subscription.consumers:
        # Sealed ones may wait for others to be consumed first; active ones wait for somebody.
        style = "yellow" if any(stats.layout.segments[each].is_active for each in free) else "dim"
        yield Text("nobody", style), "", Text(_segments(stats.layout, free), style)


def _waiting(stats: TopicStats, subscription: SubscriptionStats) -> str:
    """How many segments hold or take messages that no consumer gets; nothing for a queue, where that cannot be."""
    return str(len(unassigned(stats, subscription))) if subscription.assigns_segments else ""


def _segments(layout: LayoutStats, segment_ids: Iterable[int]) -> str:
    in_order = sorted(segment_ids, key=lambda each: (layout.range_of(each), each))
    # One below the other for people; in a pipe a row stays one line, for grep.
    return ("\n" if sys.stdout.isatty() else ", ").join(_segment(layout, each) for each in in_order)


def _segment(layout: LayoutStats, segment_id: int) -> str:
    segment = layout.segments.get(segment_id)
    if segment is None:
        return f"{segment_id} pruned"
    words = (str(segment_id), segment.hash_range, "" if segment.is_active else "sealed")
    return " ".join(word for word in words if word)


def _since(text: str | None) -> str:
    try:
        at = datetime.fromisoformat(text or "")
    except ValueError:
        return text or ""
    return moment(int(at.astimezone(UTC).timestamp() * 1_000))
