"""All attacks, by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.hostile.acknowledging import ACKNOWLEDGING
from benchmarks.hostile.administering import ADMINISTERING
from benchmarks.hostile.connecting import CONNECTING
from benchmarks.hostile.consuming import CONSUMING
from benchmarks.hostile.producing import PRODUCING
from benchmarks.hostile.publishing import PUBLISHING
from benchmarks.hostile.scenes import Attack
from benchmarks.hostile.watching import WATCHING

TABLES = (CONSUMING, ACKNOWLEDGING, PRODUCING, PUBLISHING, WATCHING, CONNECTING, ADMINISTERING)
ATTACKS: Mapping[str, Attack] = {attack.name: attack for table in TABLES for attack in table}
