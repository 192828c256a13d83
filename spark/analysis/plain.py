"""`python -m spark.analysis.plain DIR [WATCHERS]`: the analysis in plain Python, in one process, without a page.

The measure of what Spark brings. It gives the same summary as `vela trace analyze`, which a test compares.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from metadata.traces.directories import Trace
from spark.analysis.coalescing import Coalescing
from spark.analysis.findings import Bin, Extent, Findings, Namespace, Question, Skips, Told, at_share
from spark.analysis.frames import entry_bytes, snapshot_bytes
from spark.analysis.plain_moves import Move, plain_moves
from spark.analysis.summary import PUSH_COST_US, summarise
from spark.traces import open_complete

_BURST_GAP_US: Final = 100_000
_SECOND: Final = 1_000_000
_TENTH: Final = 100_000
_DIGITS: Final = 8
_BUSIEST: Final = 15
_HOUR_US: Final = 3_600_000_000


def find(trace: Trace, asked: Question) -> Findings:
    """What `spark.analysis.job.analyse` finds."""
    moves = plain_moves(trace)
    names = sorted(moves)
    watchers = {
        name: asked.watchers // len(names) + (number < asked.watchers % len(names)) for number, name in enumerate(names)
    }
    extent = _extent(moves)
    sizes: Counter[int] = Counter()
    rows = [_namespace(name, moves[name], watchers[name], extent, sizes) for name in names]
    times = sorted(move[0] for every in moves.values() for move in _seen(every))
    gaps = Counter(_rounded(after - before) for before, after in pairwise(times))
    per_second = Counter(at // _SECOND for at in times)
    told, load = _told(moves, watchers, asked)
    return Findings(
        extent=extent,
        busiest=sorted(rows, key=lambda row: (-row.per_hour, row.namespace))[:_BUSIEST],
        rates=_bins(per_second, extent.bin_s),
        peak_per_second=max(per_second.values(), default=0),
        peak_per_100ms=max(Counter(at // _TENTH for at in times).values(), default=0),
        burst_sizes=sorted(sizes.items()),
        gaps_us=sorted(gaps.items()),
        told=told,
        pushes=_bins({second: pushes for second, (pushes, _) in load.items()}, extent.bin_s),
        peak_pushes=max((pushes for pushes, _ in load.values()), default=0),
        peak_bytes=max((size for _, size in load.values()), default=0),
        skips=_skips(moves, watchers, asked, extent.duration_us),
    )


def _extent(moves: Mapping[str, Sequence[Move]]) -> Extent:
    ops = Counter(move[3] for every in moves.values() for move in every)
    return Extent(
        namespaces=len(moves),
        duration_us=max((every[-1][0] for every in moves.values() if every), default=0),
        seeds=ops["seed"],
        creates=ops["create"],
        deletes=ops["delete"],
        changes=ops["change"],
        splits=sum(map(_splits, moves.values())),
        inferred=sum(move[6] for every in moves.values() for move in every),
    )


def _seen(moves: Iterable[Move]) -> Iterator[Move]:
    """What was seen happening, so that its time is known."""
    return (move for move in moves if not move[6] and move[3] != "seed")


def _splits(moves: Sequence[Move]) -> int:
    epochs: dict[tuple[str, str], tuple[int, int]] = {}
    for _, _, topic, _, incarnation, epoch, _ in moves:
        if epoch is not None:
            low, high = epochs.get((topic, incarnation), (epoch, epoch))
            epochs[topic, incarnation] = (min(low, epoch), max(high, epoch))
    return sum(high - low for low, high in epochs.values())


def _namespace(name: str, moves: Sequence[Move], watchers: int, extent: Extent, sizes: Counter[int]) -> Namespace:
    """One row, its bursts counted into `sizes`, too."""
    ops = Counter(move[3] for move in moves)
    times = [move[0] for move in _seen(moves)]
    gaps = [after - before for before, after in pairwise(times)]
    bursts = [1] if times else []
    for gap in gaps:
        if gap >= _BURST_GAP_US:
            bursts.append(1)
        else:
            bursts[-1] += 1
    own_sizes = Counter(bursts)
    sizes.update(own_sizes)
    return Namespace(
        namespace=name,
        watchers=watchers,
        creates=ops["create"],
        deletes=ops["delete"],
        changes=ops["change"],
        splits=_splits(moves),
        per_hour=(len(moves) - ops["seed"]) / extent.hours,
        gap_us_p50=at_share(sorted(Counter(gaps).items()), 0.5),
        burst_p99=at_share(sorted(own_sizes.items()), 0.99) or 0,
        burst_max=max(bursts, default=0),
        peak_per_second=max(Counter(at // _SECOND for at in times).values(), default=0),
    )


def _told(
    moves: Mapping[str, Sequence[Move]], watchers: Mapping[str, int], asked: Question
) -> tuple[list[Told], dict[int, tuple[int, int]]]:
    """What all watchers are sent under each window, and under the node's in each second: pushes and bytes."""
    sums = {ms: [0, 0, 0, 0, 0] for ms in asked.windows_ms}
    load: dict[int, tuple[int, int]] = {}
    for namespace, every in moves.items():
        folding = Coalescing(asked.windows_ms, asked.node_window_ms)
        for at, _, topic, op, incarnation, _, _ in every:
            if op == "seed":
                folding.seed(topic, incarnation)
            elif op != "change":
                entry = _entry(namespace, topic)
                folding.change((at, topic, incarnation if op == "create" else None, entry))
        folding.end()
        count = watchers[namespace]
        for window in folding.windows:
            sent = window.totals
            added = (sent.diffs, sent.names, sent.waited_us, sent.diffs * count, sent.bytes * count)
            own = sums[window.length_us // 1_000]
            own[:] = [before + more for before, more in zip(own, added, strict=True)]
            for second, (diffs, size) in window.per_second.items():
                pushes, total = load.get(second, (0, 0))
                load[second] = (pushes + diffs * count, total + size * count)
    return [Told(ms, *own) for ms, own in sums.items()], load


def _skips(
    moves: Mapping[str, Sequence[Move]], watchers: Mapping[str, int], asked: Question, duration_us: int
) -> Skips:
    reconnects = skipped = saved = sent = 0.0
    for namespace, every in moves.items():
        rate = watchers[namespace] * asked.reconnects_per_hour / _HOUR_US
        entries, since, began_with = 0, 0, "seed"
        steps = [(move[0], move[3], _entry(namespace, move[2])) for move in every if move[3] != "change"]
        for at, op, entry in (*steps, (duration_us, "", 0)):
            same = max(at - since - asked.downtime_us, 0)
            other = 0 if began_with == "seed" else min(at - since, asked.downtime_us)
            snapshot = snapshot_bytes(entries)
            reconnects += rate * (same + other)
            skipped += rate * same
            saved += rate * same * snapshot
            sent += rate * other * snapshot
            entries += -entry if op == "delete" else entry
            since, began_with = at, op
    return Skips(reconnects, skipped, saved, sent)


def _entry(namespace: str, topic: str) -> int:
    return entry_bytes(len(f"topic://{namespace}/{topic}".encode()))


def _bins(by_second: Mapping[int, int], seconds: int) -> list[Bin]:
    bins: dict[int, tuple[int, int]] = {}
    for second, count in by_second.items():
        start = second // seconds * seconds
        total, most = bins.get(start, (0, 0))
        bins[start] = (total + count, max(most, count))
    return [Bin(start, *bins[start]) for start in sorted(bins)]


def _rounded(value: int) -> int:
    surplus = max(value.bit_length() - _DIGITS, 0)
    return value >> surplus << surplus


def main(arguments: Sequence[str]) -> None:
    directory = Path(arguments[0])
    watchers = int(arguments[1]) if len(arguments) > 1 else 1_000
    asked = Question(watchers, (0, 10, 25, 50, 100, 200), 50, 1.0, 5_000_000, PUSH_COST_US)
    summary = summarise(str(directory), asked, find(open_complete(directory), asked))
    print(msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())


if __name__ == "__main__":
    main(sys.argv[1:])
