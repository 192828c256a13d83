"""Pseudonyms: the same for the same name and key, the structure kept, and nothing of the names left."""

import json
from pathlib import Path

import pytest

from layout import records
from layout.layouts import Layout
from layout.records import TopicRecord
from metadata.traces.errors import TraceError
from metadata.traces.pseudonyms import Pseudonyms, random_key, read_key

ONE, OTHER = Pseudonyms(b"1" * 32), Pseudonyms(b"2" * 32)


def test_the_same_name_has_the_same_pseudonym_under_one_key_and_another_under_another() -> None:
    assert ONE.name("orders") == Pseudonyms(b"1" * 32).name("orders")
    assert ONE.name("orders") != ONE.name("payments")
    assert ONE.name("orders") != OTHER.name("orders")


def test_a_namespace_keeps_its_structure() -> None:
    assert ONE.path("acme/shop") == f"{ONE.name('acme')}/{ONE.name('shop')}"
    assert ONE.path("acme/shop").split("/")[0] == ONE.path("acme/other").split("/")[0]


def test_a_pseudonym_is_a_plain_name_that_can_be_used_again() -> None:
    assert all(ONE.name(text).isalnum() for text in ("", "orders", "größe/π", "x" * 1_000))


def test_a_record_keeps_its_layout_and_loses_every_name_in_it() -> None:
    layout = Layout.create(2, 1_000).split(0, 2_000)
    record = json.loads(records.encode(TopicRecord(layout, {"owner": "secret-team"})))
    record["note"] = "secret-note"
    record["segments"]["1"]["legacyTopicName"] = "persistent://acme/shop/secret-topic"
    record["segments"]["1"]["comment"] = "secret-comment"
    record["autoScalePolicy"] = {"name": "secret-policy"}
    shown = ONE.record(json.dumps(record).encode())
    assert shown is not None
    assert b"secret" not in shown
    assert b"acme" not in shown
    assert b"owner" not in shown
    read = records.decode(shown)
    assert read.layout.epoch == layout.epoch
    assert [segment.range for segment in read.layout.active] == [segment.range for segment in layout.active]
    assert read.properties == {ONE.name("owner"): ONE.name("secret-team")}
    assert read.layout.segments[1].legacy_topic_name == f"persistent://{ONE.path('acme/shop/secret-topic')}"


def test_a_value_that_is_no_record_is_left_out() -> None:
    assert ONE.record(b"secret") is None


def test_a_key_file_gives_the_same_key_whatever_line_end_it_has(tmp_path: Path) -> None:
    (tmp_path / "unix").write_bytes(b"0123456789abcdef\n")
    (tmp_path / "dos").write_bytes(b"0123456789abcdef\r\n")
    assert read_key(tmp_path / "unix") == read_key(tmp_path / "dos") != random_key()


@pytest.mark.parametrize(("content", "said"), [(b"", "too short"), (b"hunter2", "too short"), (None, "cannot be read")])
def test_a_key_file_that_is_no_secret_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "key").write_bytes(content)
    with pytest.raises(TraceError, match=said):
        read_key(tmp_path / "key")


def test_the_check_tells_keys_apart_and_does_not_hold_them() -> None:
    assert ONE.check == Pseudonyms(b"1" * 32).check != OTHER.check
    assert (b"1" * 32).hex() not in ONE.check
