"""What a synthetic trace is made of, decided before anything is written: from a trace, or from a profile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from protocol.names import MAX_NAMESPACE_LENGTH
from spark.errors import JobError
from spark.profiles import Load
from spark.synth.distances import Shape
from spark.synth.generator import FIRST_TIME_SLOT
from spark.synth.model import HOUR_US, NamespaceModel, Surroundings, daily_rate
from spark.synth.profile_model import DELAY_US, LAGS, intended, model_of, namespace_name, topics_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from metadata.traces.directories import Trace

_LARGEST_SEQ: Final = 2**63 - 1
# Times are microseconds and differ within a namespace; closer than this on average they would crowd each other out.
_CLOSEST_US: Final = 50
# Enough to compare by; beyond it, the first namespaces stand for all.
_EVENTS_COMPARED: Final = 1_000_000
# Namespaces of a profile whose numbers of topics are drawn beforehand; beyond them, the profile's mean is good enough.
_DRAWN: Final = 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much there shall be, wherever the shape comes from."""

    duration_us: int
    seed: int
    events: int | None = None  # about as many; None: as the rates say


@dataclass(frozen=True, slots=True)
class Plan:
    around: Surroundings
    model_of: Callable[[int], NamespaceModel]  # by the number of the namespace; both run in the tasks
    name_of: Callable[[int], str]
    expected: float  # events
    compared: int  # namespaces, from the first on
    goal: Callable[[], Shape]  # what these are compared with


def plan_from_trace(session: SparkSession, trace: Trace, times: float, wanted: Wanted) -> Plan:
    """Learn from a trace; the result has `times` as many namespaces, each after one of the source's in turn."""
    from spark.synth.shape import FEWEST_EVENTS, lags, measure_models, plain_timeline
    from spark.timeline import timeline
    from spark.traces import read_events

    events = read_events(session, trace)
    ordered = (plain_timeline(events) if trace.manifest.kind == "synthetic" else timeline(events)).persist()
    try:
        seen = ordered.where("op != 'seed' and not inferred").selectExpr("count(1)", "max(at_us)").first()
        count, last_us = seen if seen is not None else (0, None)
        if count < FEWEST_EVENTS or not last_us:
            raise JobError(
                f"{trace.directory} has {count} changes of topics, too few to learn from: "
                f"record until there are {FEWEST_EVENTS} or more, or use a profile."
            )
        shape, models = measure_models(ordered, last_us / HOUR_US)
    finally:
        ordered.unpersist()
    namespaces = max(1, round(len(models) * times))
    rate = sum(model.per_hour for model in models) * namespaces / len(models)
    lag, delay_us = lags(events)
    around = Surroundings(wanted.seed, namespaces, wanted.duration_us, lag, delay_us)
    around, expected = _stretched(around, rate, wanted.events)
    return Plan(
        around=around,
        model_of=partial(_in_turn, models),
        name_of=partial(copy_name, [model.name for model in models], len(str(namespaces - 1))),
        expected=expected,
        compared=_compared(namespaces, expected, len(models)),
        goal=lambda: shape,
    )


def plan_from_profile(load: Load, wanted: Wanted) -> Plan:
    drawn = min(load.namespaces, _DRAWN)
    topics = sum(topics_of(load, wanted.seed, index) for index in range(drawn)) / drawn * load.namespaces
    around = Surroundings(
        wanted.seed, load.namespaces, wanted.duration_us, LAGS, DELAY_US, daily_amplitude=load.daily_amplitude
    )
    around, expected = _stretched(around, topics * load.per_topic_hour, wanted.events)
    compared = _compared(load.namespaces, expected, 1)
    of_index = partial(model_of, load, wanted.seed)
    return Plan(
        around=around,
        model_of=of_index,
        name_of=partial(namespace_name, load.namespaces),
        expected=expected,
        compared=compared,
        goal=lambda: intended(load, [of_index(index) for index in range(compared)], around),
    )


def _stretched(around: Surroundings, per_hour: float, events: int | None) -> tuple[Surroundings, float]:
    """With gaps such that about `events` come out, and how many are expected."""
    steps = 1_000
    curve = sum(daily_rate((each + 0.5) / steps * around.duration_us, around.daily_amplitude) for each in range(steps))
    expected = per_hour * around.duration_us / HOUR_US * curve / steps
    if events is not None:
        around, expected = msgspec.structs.replace(around, stretch=expected / events), float(events)
    if expected * _CLOSEST_US > around.namespaces * around.duration_us:
        raise JobError(
            f"{expected:,.0f} events are too many for {around.namespaces:,} namespaces in that time: "
            "take more namespaces, a longer duration or fewer events."
        )
    if (FIRST_TIME_SLOT + around.duration_us) * around.namespaces > _LARGEST_SEQ:
        raise JobError("That is more than a trace can number: take a shorter duration or fewer namespaces.")
    return around, expected


def _compared(namespaces: int, expected: float, at_a_time: int) -> int:
    """How many namespaces to compare: as many as are enough, in whole rounds through those of the source."""
    enough = namespaces if expected <= _EVENTS_COMPARED else int(namespaces * _EVENTS_COMPARED / expected)
    return min(namespaces, max(1, enough // at_a_time) * at_a_time)


def _in_turn(models: Sequence[NamespaceModel], index: int) -> NamespaceModel:
    return models[index % len(models)]


def copy_name(sources: Sequence[str], width: int, index: int) -> str:
    """After its source, and no other's: all end in numbers of the same width, and no two in the same."""
    suffix = f"-{index:0{width}d}"
    tenant, _, namespace = sources[index % len(sources)].partition("/")
    return f"{tenant}/{namespace[: MAX_NAMESPACE_LENGTH - len(suffix)]}{suffix}"
