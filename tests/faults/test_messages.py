"""The promise of the data plane: whatever happens to nodes, store and layout, no acknowledged message is lost, the
messages of a key stay in order, and nothing comes back whose acknowledgement was confirmed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.message_history import Anew, AnyEvent, Fault, History, Receipt, violations
from tests.faults.message_world import FEWEST_STORED, SETTLE_LIMIT, Plan, run
from tests.support.redises import redis_program

SHORT_RUNS: Final = 10
RUNS_ON_REDIS: Final = 2
LONG_RUNS: Final = 500
# What is planted does not show in every run. One in two or three is what it takes, so this many never fail in vain.
BROKEN_RUNS: Final = 20
# What does not settle is told as such, with what is missing, before this.
pytestmark = pytest.mark.timeout(8 * SETTLE_LIMIT)


@pytest.mark.integration
@pytest.mark.parametrize("seed", range(SHORT_RUNS))
async def test_messages_survive_faults(seed: int, tmp_path: Path) -> None:
    check(await run(Plan(seed, seconds=6.0), tmp_path), tmp_path)


@pytest.mark.redis
@pytest.mark.integration
@pytest.mark.parametrize("seed", range(RUNS_ON_REDIS))
async def test_messages_survive_faults_on_redis(seed: int, tmp_path: Path) -> None:
    check(await run(Plan(seed, seconds=6.0, program=redis_program()), tmp_path), tmp_path)


# What each seed of these runs is about: other kinds of topics, subscriptions that are moved, a store that goes back.
VARIANTS: Final[dict[str, dict[str, Any]]] = {
    "classic": {"topic": "classic"},
    "partitioned": {"topic": "partitioned"},
    "seeks": {"seeks": True},
    "seeks in partitions": {"seeks": True, "topic": "partitioned"},
    "goes back": {"goes_back": True},
}


@pytest.mark.integration
@pytest.mark.parametrize("variant", VARIANTS)
async def test_messages_survive_faults_on_other_topics_and_through_seeks_and_rollbacks(
    variant: str, tmp_path: Path
) -> None:
    check(await run(Plan(1, seconds=4.0, producers=2, rate=10.0, **VARIANTS[variant]), tmp_path), tmp_path)


@pytest.mark.timeout(BROKEN_RUNS * SETTLE_LIMIT)
@pytest.mark.integration
@pytest.mark.parametrize(
    ("planted", "seen_as", "variant"),
    [
        ("acknowledgements", "came back", {}),
        ("messages", "never came to", {}),
        ("order", "of stream after", {}),
        ("keys", "of keys", {"topic": "classic"}),  # at once with two consumers, or out of order
        ("seeks", "again after it was moved", {"seeks": True}),
    ],
)
async def test_servers_that_are_broken_are_found_out(
    planted: str, seen_as: str, variant: dict[str, Any], tmp_path: Path
) -> None:
    """Not in every run: a fault has to meet another one."""
    for attempt in range(BROKEN_RUNS):
        plan = Plan(attempt, seconds=6.0, settle_limit=10.0, planted=planted, **variant)
        history = await run(plan, tmp_path / str(attempt))
        if any(seen_as in text for text in violations(history)):
            return
    pytest.fail(f"nothing was found in {BROKEN_RUNS} runs")


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SHORT_RUNS, SHORT_RUNS + LONG_RUNS))
async def test_messages_survive_long_faults(seed: int, tmp_path: Path) -> None:
    check(await run(Plan(seed, seconds=10.0), tmp_path), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(SHORT_RUNS, SHORT_RUNS + LONG_RUNS // 10))
async def test_messages_survive_long_faults_on_other_topics_and_through_seeks_and_rollbacks(
    seed: int, variant: str, tmp_path: Path
) -> None:
    check(await run(Plan(seed, seconds=10.0, **VARIANTS[variant]), tmp_path), tmp_path)


def check(history: History, directory: Path) -> None:
    found = violations(history)
    if found:
        history.save(directory / "history")
        pytest.fail(
            "\n".join([f"{len(found)} violations, see {directory / 'history'}:", *found[:20], *faults(history)])
        )
    # A run in which nothing was sent or nothing happened proves nothing.
    kinds = Counter[type[AnyEvent]](map(type, history.events))
    assert kinds[Receipt] >= FEWEST_STORED, kinds
    assert kinds[Fault] + kinds[Anew] >= 5, kinds


def faults(history: History) -> list[str]:
    return [
        f"{event.at:8.3f} {event.what if isinstance(event, Fault) else 'all nodes were killed and are back'}"
        for event in history.events
        if isinstance(event, Fault | Anew)
    ]
