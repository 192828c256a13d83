"""Adding up what became of tests: which were ever red, how often, and since when they are green."""

from __future__ import annotations

import msgspec

from tests.flakes.closing import failures
from tests.flakes.plugin import shuffled
from tests.flakes.results import Outcome, Run, ever_red, parse_outcomes, parse_runs, report, summary_of


def run(*outcomes: Outcome, busy: int = 0, seed: int = 1, exit_code: int | None = None) -> Run:
    code = (1 if any(outcome.result == "failed" for outcome in outcomes) else 0) if exit_code is None else exit_code
    return Run(
        "2026-01-01T00:00:00+00:00", "abc1234", seed, busy, ["pytest", f"--order-seed={seed}"], code, 1.5, [*outcomes]
    )


def green(test: str) -> Outcome:
    return Outcome(test, "passed")


def red(test: str, part: str = "call", reason: str = "assert False") -> Outcome:
    return Outcome(test, "failed", part, reason)


def test_what_was_red_once_is_listed_with_its_counts_and_how_long_it_is_green() -> None:
    runs = [
        run(green("a"), green("b")),
        run(green("a"), red("b"), busy=2, seed=7),
        run(green("a"), green("b")),
        run(green("a"), green("b"), busy=2),
    ]
    [tally] = ever_red(runs)
    assert (tally.test, tally.alone, tally.beside, tally.green_since) == ("b", [False, False], [True, False], 2)
    said = report(runs, "results")
    assert "4 runs of 2 tests, 1 of them ever red" in said
    assert "red 0 of 2 times alone, 1 of 2 beside busy loops; green 2 times since" in said
    assert "pytest --order-seed=7" in said


def test_a_test_that_fails_in_itself_and_afterwards_was_red_once() -> None:
    [tally] = ever_red([run(red("a", reason="first"), red("a", "teardown", "second"))])
    assert (tally.red, tally.reason) == (1, "first")


def test_a_test_that_passes_and_fails_while_it_is_taken_down_was_red() -> None:
    [tally] = ever_red([run(green("a"), red("a", "teardown"))])
    assert tally.alone == [True]
    assert summary_of(run(green("a"), red("a", "teardown"))).startswith("alone, seed 1: 0 passed, 1 failed")


def test_the_most_often_red_comes_first() -> None:
    runs = [run(red("a"), red("b")), run(green("a"), red("b"))]
    assert [tally.test for tally in ever_red(runs)] == ["b", "a"]


def test_a_run_that_was_ended_or_crashed_is_not_clean_although_no_test_failed() -> None:
    crashed = run(green("a"), exit_code=3)
    assert not crashed.is_clean
    assert "did not come to its end" in report([crashed], "results")
    assert run(exit_code=5).is_clean


def test_runs_are_read_back_as_they_were_written_and_half_a_line_is_left_out() -> None:
    runs = [run(green("a")), run(red("a"), busy=2)]
    text = b"".join(msgspec.json.encode(each) + b"\n" for each in runs)
    assert parse_runs(text) == runs
    assert parse_runs(text[:-5]) == runs[:1]


def test_outcomes_are_read_back_as_they_were_written() -> None:
    outcomes = [green("a"), red("b", "setup")]
    assert parse_outcomes(b"".join(msgspec.json.encode(each) + b"\n" for each in outcomes)) == outcomes


def test_each_failure_is_said_once_and_in_order() -> None:
    said = failures([green("a"), red("c"), red("b", reason=""), red("c", "teardown", "more")])
    assert said == ["FAILED c - assert False", "FAILED b"]


def test_shuffling_keeps_groups_together_and_depends_on_the_seed_only() -> None:
    items = [(f"module {number // 20}", number) for number in range(200)]
    orders = [shuffled(items, 1), shuffled(items, 1), shuffled(items, 2), shuffled(items[::-1], 1)]
    assert orders[0] == orders[1] != orders[2]
    for order in orders:
        assert sorted(order) == list(range(200))
        assert all(len({number // 20 for number in order[at : at + 20]}) == 1 for at in range(0, 200, 20))
