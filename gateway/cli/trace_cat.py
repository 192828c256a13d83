"""The events of a trace one by one: chosen, and written as lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from gateway.cli.graph_words import printable
from gateway.cli.trace_info import timestamp
from metadata.traces.directories import Trace
from metadata.traces.events import Kind
from metadata.traces.tables import EVENT_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

# The longest kind is `controller`.
_KIND_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Choice:
    """Which events; None stands for any. Times are microseconds, the first included and the last not."""

    namespace: str | None = None
    topic: str | None = None
    kind: str | None = None
    from_us: int | None = None
    to_us: int | None = None
    limit: int | None = None


def events(trace: Trace, choice: Choice, *, values: bool) -> Iterator[dict[str, Any]]:
    """The chosen events in order, as objects with the names of the columns."""
    columns = [name for name in EVENT_SCHEMA.names if values or name != "value"]
    chosen = (_chosen(batch, choice) for batch in trace.batches(columns))
    return islice((row for batch in chosen for row in _rows(batch)), choice.limit)


def lines(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One line for people each."""
    for event in found:
        fields = (
            timestamp(event["taken_us"]) or f"{event['taken_us']} us",
            f"{event['kind']:<{_KIND_WIDTH}}",
            _name(event),
            _labelled("bucket", event["bucket"]) if event["topic"] is None else "",
            _labelled("epoch", event["epoch"]),
            _labelled("version", event["version"]),
            _size(event),
            printable(event["detail"] or ""),
            printable((event.get("value") or b"").decode(errors="replace")),
        )
        yield "  ".join(field for field in fields if field).rstrip()


def json_lines(found: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One object with all columns each; the record as the text that it is."""
    for event in found:
        value = event.get("value")
        text = {} if "value" not in event else {"value": None if value is None else value.decode(errors="replace")}
        yield json.dumps({**event, **text}, ensure_ascii=False)


def _chosen(batch: pa.RecordBatch, choice: Choice) -> pa.RecordBatch:
    import pyarrow.compute as pc

    for name in ("namespace", "topic", "kind"):
        wanted = getattr(choice, name)
        if wanted is not None:
            batch = batch.filter(pc.equal(batch[name], wanted))
    if choice.from_us is not None:
        batch = batch.filter(pc.greater_equal(batch["taken_us"], choice.from_us))
    if choice.to_us is not None:
        batch = batch.filter(pc.less(batch["taken_us"], choice.to_us))
    return batch


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    # In slices: of a batch of twenty thousand, `head` needs ten.
    for start in range(0, batch.num_rows, 500):
        yield from batch.slice(start, 500).to_pylist()


def _name(event: Mapping[str, Any]) -> str:
    return printable("/".join(part for part in (event["namespace"], event["topic"]) if part is not None))


def _size(event: Mapping[str, Any]) -> str:
    if event["size"] is None:
        return ""
    # A gap has no record: its number is that of the changes that are known to be lost.
    return f"{event['size']} {'dropped' if event['kind'] == Kind.GAP else 'B'}"


def _labelled(label: str, number: int | None) -> str:
    return "" if number is None else f"{label} {number}"
