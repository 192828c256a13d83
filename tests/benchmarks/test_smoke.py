"""The benchmarks run and say something that programs and people can read. What they measure is not looked at."""

import json
import subprocess
import sys

import pytest

from benchmarks.__main__ import BENCHMARKS
from benchmarks.figures import Figure, Quantity
from benchmarks.hostile.attacks import ATTACKS

FIGURES = {
    "push": ["CPU per pushed frame"],
    "start": ["start until ready"],
    "memory": [
        "memory per connection",
        "memory per further watch, same topic",
        "memory per further watch, distinct topics",
    ],
    "storm": ["reconnect storm", "bucket reads in a reconnect storm"],
    "burst": [
        "CPU per frame of a burst",
        "from write to watcher in a burst, p50",
        "from write to watcher in a burst, p99",
    ],
    "watches": ["memory per namespace watch", "one change to all namespace watches"],
    "stalled": ["p99 beside a stalled peer"],
    "creates": ["creating a topic beside a namespace watch, p99"],
    "failover": ["fail-over after a kill, median", "fail-over after a kill, worst"],
    "rebalance": [
        "segments moved when one joins or leaves",
        "pushes when one joins or leaves",
        "rebalances while a crowd joins",
        "a crowd joins",
    ],
    "messages": [
        "time per acknowledged message, one producer",
        "time per acknowledged message, ten producers",
    ],
    "dispatch": [
        "time per delivered message, one subscription",
        "time per delivered message, twenty subscriptions",
    ],
    "delayed": ["lateness of delayed messages, p99"],
    "segments": ["memory per idle segment"],
    "hostile": [
        f"{attack.name}: {figure}"
        for attack in ATTACKS.values()
        for figure in ("PING, p99", "SEND, p99", *(["GET, p99"] if attack.is_http else []), "memory after")
    ],
    "record": ["recorder overhead"],
    "analysis": ["analysis of a smaller trace", "analysis of a larger trace", "analysis, how time grows"],
    "replay": ["lateness of a replay, p99", "from due to shown in a replay, p99"],
    "idle": ["memory per led topic", "store commands of an idle node"],
}

# Three seconds each, and enough to see that what they share works; the others wait for `make integration`.
USUAL = {"start", "storm", "push"}
# Half a minute that is spent waiting, and several starts of Spark.
LONG = {"idle", "analysis", "replay"}
WHEN = dict.fromkeys(BENCHMARKS, pytest.mark.integration)
WHEN |= dict.fromkeys(USUAL, pytest.mark.slow) | dict.fromkeys(LONG, pytest.mark.soak)
LIMIT_S = 600.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("name", [pytest.param(name, marks=WHEN[name]) for name in BENCHMARKS])
def test_quick_run_measures_every_figure_of_a_benchmark(name: str) -> None:
    done = run(name, "--quick", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert [figure["name"] for figure in figures] == FIGURES[name]
    for figure in figures:
        if figure["target"] is not None:
            assert figure["target"] > 0
            assert figure["within_target"] == (figure["ratio_to_target"] <= 1)


def test_unknown_benchmark_is_refused_with_the_names_of_those_that_exist() -> None:
    done = run("pushes")
    assert done.returncode == 2
    assert f"there are {', '.join(BENCHMARKS)}" in done.stderr


def test_target_in_ratios_is_compared_with_the_ratio_to_the_floor() -> None:
    figure = Figure("f", Quantity(12.0, "us"), Quantity(10.0, "us"), target=1.4, target_is_ratio=True)
    assert figure.ratio_to_floor == pytest.approx(1.2)
    assert figure.within_target


def test_target_in_units_is_compared_with_the_measured_value() -> None:
    figure = Figure("f", Quantity(12.0, "KB"), Quantity(10.0, "KB"), target=10.0)
    assert figure.ratio_to_target == pytest.approx(1.2)
    assert not figure.within_target


def test_figure_without_a_target_has_no_verdict() -> None:
    figure = Figure("f", Quantity(12.0, "ms"), Quantity(10.0, "ms"), target=None)
    assert figure.ratio_to_floor == pytest.approx(1.2)
    assert figure.ratio_to_target is None
    assert figure.within_target is None
