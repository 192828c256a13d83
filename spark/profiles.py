"""Profiles: a load described in a few numbers of a TOML file, for traces made without a recording and for replays."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from spark.errors import JobError

# Every number has an upper bound: TOML knows infinity, and a slip of the finger is found before the disk is full.
Share = Annotated[float, Meta(ge=0, le=1)]
PerHour = Annotated[float, Meta(ge=0, le=1e6)]
Milliseconds = Annotated[float, Meta(gt=0, le=3_600_000)]


class TopicsPerNamespace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Log-normal, so that a few namespaces hold many of the topics; `spread` 0 gives all the same number."""

    mean: Annotated[float, Meta(ge=1, le=100_000)] = 50.0
    spread: Annotated[float, Meta(ge=0, le=3)] = 1.0  # the deviation of the logarithm


class Bursts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How events come together: `share` of them in bursts of `size` on average, `gap_ms` apart."""

    share: Share = 0.5
    size: Annotated[float, Meta(ge=2, le=10_000)] = 5.0
    gap_ms: Milliseconds = 5.0


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens in the namespaces. Rates are per topic and hour."""

    namespaces: Annotated[int, Meta(ge=1, le=10_000_000)] = 100
    topics: TopicsPerNamespace = TopicsPerNamespace()
    churn: PerHour = 1.0  # creations and deletions together
    recreated: Share = 0.05  # of the creations, those that take the name of a deleted topic
    changes: PerHour = 1.0  # of properties: the layout stays
    split_rate: PerHour = 0.1  # splits and merges together
    merge_share: Annotated[float, Meta(ge=0, le=0.5)] = 0.3  # of those; more merges than splits cannot be
    bursts: Bursts = Bursts()
    daily_amplitude: Annotated[float, Meta(ge=0, le=0.95)] = 0.0  # 0.5: from half to one and a half times the mean
    name_length: Annotated[int, Meta(ge=8, le=200)] = 24  # of a topic's local name

    @property
    def per_topic_hour(self) -> float:
        """All events of a topic in an hour."""
        return self.churn + self.changes + self.split_rate


class ReconnectPattern(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often connections of a replay drop, and how long they stay away."""

    per_minute: Annotated[float, Meta(ge=0, le=60)] = 0.0  # share of the connections
    downtime_ms: tuple[Milliseconds, Milliseconds] = (100.0, 2_000.0)  # from, to
    storm_every_s: Annotated[float, Meta(gt=0, le=86_400)] | None = None  # all of them at once


class Watchers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who watches in a replay."""

    topic_share: Share = 0.0  # of the watchers, those that watch the DAG of one topic
    reconnect: ReconnectPattern = ReconnectPattern()


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shape: Load = Load()
    watchers: Watchers = Watchers()


_WORDS: Final = {"`float`": "a number", "`int`": "a whole number", "`str`": "text", "`object`": "a table"}


def load_profile(path: Path) -> Profile:
    """The profile in a file, or a JobError that names the key which is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise JobError(f"The profile {path} cannot be read ({reason}): give a TOML file.") from None
    return parse_profile(text, str(path))


def parse_profile(text: str, name: str) -> Profile:
    """`name` is what the errors call it."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(f"The profile {name} is not TOML: {error}.") from None
    if (key := _not_finite(raw)) is not None:
        raise JobError(f"The profile {name} is wrong at {key}: give a finite number.")
    try:
        profile = msgspec.convert(raw, Profile)
    except msgspec.ValidationError as error:
        raise JobError(f"The profile {name} is wrong{_located(str(error))}.") from None
    low, high = profile.watchers.reconnect.downtime_ms
    if low > high:
        raise JobError(f"The profile {name} is wrong at watchers.reconnect.downtime_ms: {low:g} is above {high:g}.")
    if profile.shape.per_topic_hour == 0:
        raise JobError(f"In the profile {name} nothing happens: set shape.churn, shape.changes or shape.split_rate.")
    return profile


def _located(message: str) -> str:
    """`Expected ... - at `$.shape.churn`` with the key in front, in the words of TOML."""
    problem, _, place = message.partition(" - at ")
    for code, words in _WORDS.items():
        problem = problem.replace(code, words)
    problem = problem.replace("Object contains unknown field", "there is no key").removesuffix(".")
    where = place.strip("`").removeprefix("$").removeprefix(".")
    problem = problem[:1].lower() + problem[1:]
    return f" at {where}: {problem}" if where else f": {problem}"


def _not_finite(value: object, key: str = "") -> str | None:
    match value:
        case float() if not math.isfinite(value):
            return key
        case dict():
            found = (_not_finite(each, f"{key}.{name}" if key else name) for name, each in value.items())
        case list():
            found = (_not_finite(each, f"{key}[{index}]") for index, each in enumerate(value))
        case _:
            return None
    return next((place for place in found if place is not None), None)
