"""Models from a profile: each namespace a little different, the same ones for the same seed; and the shape it means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from spark.profiles import Load
from spark.synth.distances import Shape
from spark.synth.generator import MOST_TOPICS
from spark.synth.model import (
    CELLS,
    HOUR_US,
    PROBABILITIES,
    TOGETHER_US,
    NamespaceModel,
    Quantiles,
    Surroundings,
    daily_rate,
    gaps_of,
    quantiles_of,
    smooth_cells,
    step_rows,
    stepped_cells,
    threshold_us,
)

# The record of a topic with one segment, and what each split or merge adds to it until it is pruned; in bytes.
_RECORD: Final = 280
_SEGMENT: Final = 235

# A store in the next room: from a fraction of a millisecond to a few of them.
LAGS: Final[Quantiles] = tuple(300 + 400 * -math.log(1 - min(p, 0.9999)) for p in PROBABILITIES)
DELAY_US: Final = 200

# How far the number of topics of a namespace wanders from where it began.
_WANDER: Final = 0.2

_DRAWS: Final = 20_000  # bursts that the intended distributions are drawn from


def namespace_name(count: int, index: int) -> str:
    return f"synth/ns-{index:0{len(str(count - 1))}d}"


def topics_of(load: Load, seed: int, index: int) -> int:
    """How many topics a namespace has: log-normal around the mean."""
    spread = load.topics.spread
    drawn = Random(f"{seed}/topics/{index}").lognormvariate(math.log(load.topics.mean) - spread**2 / 2, spread)
    return min(max(1, round(drawn)), MOST_TOPICS // 2)


def model_of(load: Load, seed: int, index: int) -> NamespaceModel:
    topics = topics_of(load, seed, index)
    per_hour = topics * load.per_topic_hour
    sizes, changing = _burst_sizes(load), load.changes + load.split_rate
    mean_size = sum(stepped_cells(sizes)) / CELLS
    mean_gap = HOUR_US / per_hour
    closest = threshold_us(mean_gap)
    inside = _exponential(load.bursts.gap_ms * 1_000, 1.0, closest)
    mean_inside = sum(smooth_cells(inside)) / CELLS
    # Further apart than what counts as one burst, or bursts would be larger than the profile says.
    mean_between = max(mean_size * mean_gap - (mean_size - 1) * mean_inside, 1.1 * closest)
    wander = max(1, round(_WANDER * topics))
    return NamespaceModel(
        name="",
        per_hour=per_hour,
        inside=inside,
        between=_exponential(mean_between - closest, closest + 1, math.inf),
        burst_sizes=sizes,
        steps=((load.churn / 2, changing, load.churn / 2),) * len(step_rows()),
        topics=topics,
        fewest=max(0, topics - wander),
        most=topics + wander,
        again=0.0,
        resized=load.split_rate / changing if changing else 0.0,
        recreated=load.recreated,
        lifetimes=(),
        lasting=0.0,
        created_sizes=quantiles_of([_RECORD]),
        changed_sizes=_resized(load.merge_share),
        epochs=quantiles_of([0]),
        name_length=load.name_length,
    )


def _burst_sizes(load: Load) -> Quantiles:
    """Single events, and bursts of two and more with a geometric number of further ones."""
    share, size = load.bursts.share, load.bursts.size
    bursts = share / (share + size * (1 - share))
    ending = 1 / (size - 1)  # the chance, after the second event and each further one, that it was the last
    values = []
    for p in PROBABILITIES:
        if p <= 1 - bursts:
            values.append(1.0)
        elif ending >= 1:
            values.append(2.0)
        else:
            remaining = max((1 - p) / bursts, 1e-3)
            values.append(2.0 + math.floor(math.log(remaining) / math.log(1 - ending)))
    return tuple(values)


def _exponential(mean: float, least: float, most: float) -> Quantiles:
    return tuple(min(most, least - mean * math.log(1 - min(p, 0.9999))) for p in PROBABILITIES)


def _resized(merge_share: float) -> Quantiles:
    """Sizes of records after splits and merges: a walk of 1,000 steps. Either adds to what is sealed and not pruned."""
    rng = Random("record sizes")
    active, sizes = 1, []
    for _ in range(1_000):
        merge = active > 1 and rng.random() < merge_share
        active = active - 1 if merge else active % 16 + 1
        sizes.append(float(_RECORD + _SEGMENT * (2 * active - 1)))
    return quantiles_of(sizes)


def intended(load: Load, models: Sequence[NamespaceModel], around: Surroundings) -> Shape:
    """The shape that a trace of these models is meant to have, drawn from them without making one."""
    rng = Random("intended")
    total = load.per_topic_hour
    phases = [daily_rate((each + 0.5) / 1_000 * around.duration_us, around.daily_amplitude) for each in range(1_000)]
    busy = sum(phases) / len(phases)
    cells = [gaps_of(model, 1.0) for model in models]
    gaps: list[float] = []
    bursts: list[float] = []
    # Bursts come in proportion to the rate of their namespace and of the time of the day.
    chosen = rng.choices(cells, [model.per_hour for model in models], k=_DRAWS)
    for drawn, phase in zip(chosen, rng.choices(phases, phases, k=_DRAWS), strict=True):
        size = rng.choice(drawn.burst_sizes)
        bursts.append(size)
        gaps.append(max(TOGETHER_US, rng.choice(drawn.between) / phase))
        gaps.extend(max(TOGETHER_US, gap) for gap in rng.choices(drawn.inside, k=size - 1))
    return Shape(
        events=round(sum(model.per_hour for model in models) * busy * around.duration_us / HOUR_US / around.stretch),
        namespaces=len(models),
        gaps=quantiles_of(gaps),
        burst_sizes=quantiles_of(bursts),
        mix=(load.churn / 2 / total, (load.changes + load.split_rate) / total, load.churn / 2 / total),
        per_hour=quantiles_of([model.per_hour * busy for model in models]),
        topics=quantiles_of([model.topics for model in models]),
        sizes=(),
    )
