from __future__ import annotations

from pathlib import Path

import pytest

from spark.errors import JobError
from spark.profiles import Profile, load_profile, parse_profile

PROFILES = Path(__file__).parents[2] / "profiles"


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_profiles_that_come_with_vela_are_right(path: Path) -> None:
    assert load_profile(path).shape.per_topic_hour > 0


def test_an_empty_profile_is_the_default() -> None:
    assert parse_profile("", "empty") == Profile()


def test_all_keys_are_taken_in() -> None:
    profile = parse_profile(
        """
        [shape]
        namespaces = 7
        churn = 1
        [shape.topics]
        mean = 3
        spread = 0
        [shape.bursts]
        share = 1
        size = 2
        [watchers]
        topic_share = 0.25
        [watchers.reconnect]
        per_minute = 2
        downtime_ms = [5, 10]
        storm_every_s = 60
        """,
        "full",
    )
    assert profile.shape.namespaces == 7
    assert profile.shape.topics.spread == 0
    assert profile.shape.bursts.size == 2
    assert profile.watchers.topic_share == 0.25
    assert profile.watchers.reconnect.downtime_ms == (5, 10)
    assert profile.watchers.reconnect.storm_every_s == 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[shape]\nchurn = 'much'", "shape.churn: expected a number, got text"),
        ("[shape]\nchurn = -1", "shape.churn"),
        ("[shape]\nchurn = 1e9", "shape.churn"),
        ("[shape]\nchurn = inf", "shape.churn: give a finite number"),
        ("[shape.topics]\nmean = nan", "shape.topics.mean: give a finite number"),
        ("[shape]\nchrun = 1", "shape: there is no key `chrun`"),
        ("[shapes]\nchurn = 1", "there is no key `shapes`"),
        ("[shape]\nnamespaces = 1.5", "shape.namespaces: expected a whole number"),
        ("[shape]\nnamespaces = 0", "shape.namespaces"),
        ("[shape]\nmerge_share = 0.9", "shape.merge_share"),
        ("[shape.bursts]\nsize = 1", "shape.bursts.size"),
        ("shape = 3", "shape: expected a table"),
        ("[watchers]\ntopic_share = 2", "watchers.topic_share"),
        ("[watchers.reconnect]\ndowntime_ms = [3]", "watchers.reconnect.downtime_ms"),
        ("[watchers.reconnect]\ndowntime_ms = [9, 3]", "watchers.reconnect.downtime_ms: 9 is above 3"),
        ("[watchers.reconnect]\nstorm_every_s = 0", "watchers.reconnect.storm_every_s"),
        ("[shape]\nchurn = 0\nchanges = 0\nsplit_rate = 0", "nothing happens"),
        ("[shape", "not TOML"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(JobError) as caught:
        parse_profile(text, "load.toml")
    assert said in str(caught.value)
    assert "load.toml" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"absent\.toml cannot be read"):
        load_profile(tmp_path / "absent.toml")
    with pytest.raises(JobError, match="cannot be read"):
        load_profile(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(JobError, match="not UTF-8"):
        load_profile(tmp_path / "latin.toml")
