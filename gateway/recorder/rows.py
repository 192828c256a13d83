"""Events of a trace, made from log entries, found topics and gaps: numbered, timed, and without names if so wanted."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final
from urllib.parse import unquote

import msgspec
from msgspec import Meta

from gateway.recorder.clock import Clock
from gateway.recorder.intake import Base, BaseEnd, Entries, Gap
from metadata.link import Reply
from metadata.records import StoredTopic
from metadata.traces.events import Kind, TraceEvent
from metadata.traces.pseudonyms import Pseudonyms

# Paths whose names are remembered.
_REMEMBERED: Final = 100_000
# Of entries about a record, whose fields the scripts write in the order of these, with the operation in the middle.
_LENGTH: Final = 14
_WANTED: Final = (b"topic", b"kind", b"incarnation", b"version", b"epoch", b"size")


class _EpochJson(msgspec.Struct):
    epoch: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None


_epoch_decoder: Final = msgspec.json.Decoder(_EpochJson)


class Rows:
    """Numbers are given in the order in which rows are made."""

    def __init__(self, *, run: int, next_seq: int, clock: Clock, values: bool, pseudonyms: Pseudonyms | None) -> None:
        self._run = run
        self._seq = next_seq
        self._clock = clock
        self._values = values
        self._pseudonyms = pseudonyms
        self._names: dict[bytes, tuple[str, str, str]] = {}

    def of_entries(self, items: Iterable[Entries]) -> list[tuple[TraceEvent, str, float]]:
        """Changes, each with the path of its topic and when it was read."""
        # The one place where every step counts: it is done for each change that the gateway hears of.
        us, run, names = self._clock.us, self._run, self._names
        seq = self._seq
        made = []
        for bucket, entries, arrivals, read in map(_parts, items):
            taken = us(read)
            for (number, fields), arrival in zip(entries, arrivals, strict=True):
                stored, kind, incarnation, version, epoch, size = _said(fields)
                path, namespace, topic = names.get(stored) or self._named(stored)
                ms, in_ms = number.split(b"-")
                event = TraceEvent(
                    seq,
                    run,
                    kind.decode(),
                    taken,
                    None if arrival is None else us(arrival),
                    int(ms),
                    int(in_ms),
                    bucket,
                    namespace,
                    topic,
                    incarnation.decode() or None,
                    int(version) if version else None,
                    int(epoch) if epoch else None,
                    int(size) if size else None,
                )
                seq += 1
                made.append((event, path, read))
        self._seq = seq
        return made

    def of_recorder(self, item: Gap | Base | BaseEnd) -> Iterator[TraceEvent]:
        """What the recorder tells about itself."""
        match item:
            case Gap():
                return self._of_gap(item)
            case Base():
                return self._of_base(item)
            case BaseEnd():
                return self._of_base_end(item)

    def _of_gap(self, gap: Gap) -> Iterator[TraceEvent]:
        taken = self._clock.us(gap.taken)
        for bucket in _each(gap.buckets):
            yield TraceEvent(
                self._next(), self._run, Kind.GAP, taken, bucket=bucket, size=gap.dropped or None, detail=gap.cause
            )

    def _of_base(self, base: Base) -> Iterator[TraceEvent]:
        taken = self._clock.us(base.taken)
        for bucket, found in base.found:
            yield self._of_found(bucket, found, taken)

    def _of_base_end(self, end: BaseEnd) -> Iterator[TraceEvent]:
        taken = self._clock.us(end.taken)
        for bucket in _each(end.buckets):
            yield TraceEvent(self._next(), self._run, Kind.BASE_END, taken, bucket=bucket)

    def value(self, value: bytes) -> bytes | None:
        """A record as it may be written."""
        return value if self._pseudonyms is None else self._pseudonyms.record(value)

    def _of_found(self, bucket: int, found: StoredTopic, taken: int) -> TraceEvent:
        namespace, topic = self._shown(str(found.name.namespace_name), found.name.local)
        return TraceEvent(
            self._next(),
            self._run,
            Kind.BASE,
            taken,
            bucket=bucket,
            namespace=namespace,
            topic=topic,
            incarnation=found.version.incarnation,
            version=found.version.number,
            epoch=_epoch(found.value),
            size=len(found.value),
            value=self.value(found.value) if self._values else None,
        )

    def _next(self) -> int:
        seq = self._seq
        self._seq += 1
        return seq

    def _named(self, stored: bytes) -> tuple[str, str, str]:
        """Path, namespace and local name of what an entry is about."""
        if len(self._names) >= _REMEMBERED:
            self._names.clear()
        path = stored.decode()
        namespace, _, local = path.rpartition("/")
        if "%" in path:
            namespace, local = unquote(namespace), unquote(local)
        named = self._names[stored] = (path, *self._shown(namespace, local))
        return named

    def _shown(self, namespace: str, local: str) -> tuple[str, str]:
        if self._pseudonyms is None:
            return namespace, local
        return self._pseudonyms.path(namespace), self._pseudonyms.name(local)


_parts: Final = operator.attrgetter("bucket", "entries", "arrivals", "taken")


def _each(buckets: Sequence[int] | None) -> Sequence[int | None]:
    return (None,) if buckets is None else buckets


def _said(fields: Reply) -> Sequence[bytes]:
    """Topic, kind, incarnation, version, epoch and size as an entry gives them; empty what it does not say."""
    if len(fields) == _LENGTH and fields[4] == b"incarnation" and fields[10] == b"epoch":
        return fields[1], fields[3], fields[5], fields[7], fields[11], fields[13]
    said = dict(zip(fields[::2], fields[1::2], strict=True))
    return [said.get(name, b"") for name in _WANTED]


def _epoch(value: bytes) -> int | None:
    try:
        return _epoch_decoder.decode(value).epoch
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
