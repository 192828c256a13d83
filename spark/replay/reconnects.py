"""When a connection of a replay drops, and for how long: the dice of a reconnect pattern."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random

from spark.profiles import ReconnectPattern


def drops(pattern: ReconnectPattern, dice: Random) -> Iterator[tuple[float, float]]:
    """Seconds from the start until a drop, and seconds until the connection comes back; in order, without end.

    Storms come to all connections at the same moments, the others to each by itself.
    """
    rate = pattern.per_minute / 60
    storm_every = inf if pattern.storm_every_s is None else pattern.storm_every_s
    own = dice.expovariate(rate) if rate else inf
    storm = storm_every
    while (at := min(own, storm)) < inf:
        yield at, dice.uniform(*pattern.downtime_ms) / 1_000
        if at == storm:
            storm += storm_every
        else:
            own += dice.expovariate(rate)
