"""How long ten million events take, and how much room; run by `make soak`, which shows what is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark.profiles import load_profile
from spark.session import spark_session
from spark.synth.job import synthesise
from spark.synth.model import HOUR_US
from spark.synth.plans import Wanted, plan_from_profile

EVENTS = 10_000_000
PROFILE = Path(__file__).parents[3] / "profiles" / "steady.toml"


@pytest.mark.soak
@pytest.mark.timeout(1_800)
def test_ten_million_events_on_two_cores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_from_profile(load_profile(PROFILE).shape, Wanted(12 * HOUR_US, seed=1, events=EVENTS))
    with spark_session("vela volume", "local[2]", {"spark.driver.memory": "1g"}) as session:
        made = synthesise(session, plan, tmp_path / "out")
    with capsys.disabled():
        print(f"\n{made.events:,} events in {made.written_s:.0f} s: {made.events / made.written_s:,.0f} a second")
        print(f"{made.bytes / 1e6:,.0f} MB in {made.files:,} files: {made.bytes / made.events:.1f} bytes an event")
        print(f"compared in {made.compared_s:.0f} s by {made.compared_namespaces} namespaces: {made.verdict}")
        for each in made.distances:
            print(f"  {each.of}: {each.distance:.3f} ({each.measure})")
    assert made.events == pytest.approx(EVENTS, rel=0.02)
    assert made.verdict == "the same shape"
    assert made.bytes / made.events < 40
