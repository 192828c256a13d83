"""`vela schemas …` against a real HTTP server that answers as told."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.vela_command import AdminStub, Outcome, admin_stub, assert_one_sentence, vela

T = "/admin/v2/schemas/public/default/orders"
NAME = "topic://public/default/orders"
DEFINITION = '{"type":"record","name":"Order","fields":[]}'
FOUND = {"version": 3, "type": "AVRO", "timestamp": 1_700_000_000_000, "data": DEFINITION, "properties": {"by": "me"}}


@pytest.fixture
def admin() -> Iterator[AdminStub]:
    with admin_stub() as stub:
        yield stub


def schemas(admin: AdminStub, *arguments: str) -> Outcome:
    return vela("schemas", *arguments, VELA_ADMIN_URL=admin.url)


def sent(admin: AdminStub) -> object:
    return json.loads(admin.requests[-1][2])


def test_get_shows_the_version_and_the_definition(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/schema", 200, FOUND)
    first, properties, *definition = schemas(admin, "get", "orders").out.splitlines()
    assert first == "Version 3, avro, since 2023-11-14 22:13:20Z."
    assert properties == "by=me"
    assert json.loads("\n".join(definition)) == json.loads(DEFINITION)
    assert json.loads(schemas(admin, "get", "orders", "--json").out) == FOUND


def test_get_of_a_version_asks_for_it(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/schema/0", 200, FOUND | {"version": 0, "type": "STRING", "data": "", "properties": {}})
    outcome = schemas(admin, "get", "orders", "--version", "0")
    assert outcome.out == "Version 0, string, since 2023-11-14 22:13:20Z.\n"


def test_what_others_have_written_moves_no_cursor(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/schema", 200, FOUND | {"data": "\x1b[2J", "properties": {"\x1b": "\x1b"}, "type": "\x1b"})
    outcome = schemas(admin, "get", "orders")
    assert (outcome.code, "\x1b" in outcome.out) == (0, False)


def test_list_has_a_line_for_each_version(admin: AdminStub) -> None:
    content = {"getSchemaResponses": [FOUND, FOUND | {"version": 4}]}
    admin.answer("GET", f"{T}/schemas", 200, content)
    lines = [line.split() for line in schemas(admin, "list", "orders").out.splitlines()]
    assert lines == [
        ["version", "type", "created", "bytes"],
        ["3", "avro", "2023-11-14", "22:13:20Z", "44"],
        ["4", "avro", "2023-11-14", "22:13:20Z", "44"],
    ]
    assert json.loads(schemas(admin, "list", "orders", "--json").out) == content


def test_list_of_none_is_empty(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/schemas", 200, {"getSchemaResponses": []})
    assert schemas(admin, "list", "orders").out == ""


def test_upload_of_a_definition_says_its_type(admin: AdminStub, tmp_path: Path) -> None:
    admin.answer("POST", f"{T}/schema", 200, {"version": 1})
    file = tmp_path / "order.avsc"
    file.write_text(DEFINITION)
    outcome = schemas(admin, "upload", "orders", str(file), "--type", "avro", "-p", "by=me")
    assert outcome.out == f"{NAME} has this schema as version 1.\n"
    assert sent(admin) == {"type": "AVRO", "schema": DEFINITION, "properties": {"by": "me"}}


def test_upload_of_a_file_for_pulsar_needs_no_type(admin: AdminStub, tmp_path: Path) -> None:
    admin.answer("POST", f"{T}/schema", 200, {"version": 1})
    payload = {"type": "JSON", "schema": DEFINITION, "properties": {"a": "1", "b": "2"}}
    file = tmp_path / "payload.json"
    file.write_text(json.dumps(payload))
    assert schemas(admin, "upload", "orders", str(file), "-p", "b=3").code == 0
    assert sent(admin) == payload | {"properties": {"a": "1", "b": "3"}}


def test_upload_of_a_type_without_parts_needs_no_file(admin: AdminStub) -> None:
    admin.answer("POST", f"{T}/schema", 200, {"version": 0})
    assert schemas(admin, "upload", "orders", "--type", "local-date").code == 0
    assert sent(admin) == {"type": "LOCAL_DATE", "schema": "", "properties": {}}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"type":"AVRO"}', b"\xff"])
def test_a_file_that_cannot_be_meant_is_refused_before_anybody_is_asked(
    admin: AdminStub, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert_one_sentence(schemas(admin, "upload", "orders", str(file)))
    assert_one_sentence(schemas(admin, "upload", "orders", str(tmp_path / "missing")))
    assert admin.requests == []


@pytest.mark.parametrize(("fits", "code", "words"), [(True, 0, "fits"), (False, 1, "does not fit")])
def test_check_tells_by_words_and_by_its_exit_code(admin: AdminStub, fits: bool, code: int, words: str) -> None:
    answer = {"compatibility": fits, "schemaCompatibilityStrategy": "FULL"}
    admin.answer("POST", f"{T}/compatibility", 200, answer)
    outcome = schemas(admin, "check", "orders", "--type", "string")
    assert (outcome.code, outcome.out) == (code, f"The schema {words} {NAME} (FULL).\n")


@pytest.mark.parametrize(("flags", "query"), [([], ""), (["--force"], "?force=true")])
def test_delete_sends_force_only_when_told(admin: AdminStub, flags: list[str], query: str) -> None:
    admin.answer("DELETE", f"{T}/schema", 200, {"version": 1})
    assert schemas(admin, "delete", "orders", *flags).out == f"{NAME} has no schema any more.\n"
    assert admin.requests[-1][:2] == ("DELETE", f"{T}/schema{query}")


def test_a_classic_name_is_as_good(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/schema", 200, FOUND)
    assert schemas(admin, "get", "persistent://public/default/orders-partition-3").code == 0


def test_a_refusal_is_told_in_the_words_of_the_server(admin: AdminStub) -> None:
    admin.answer("POST", f"{T}/schema", 409, {"reason": "The schema does not fit."})
    outcome = schemas(admin, "upload", "orders", "--type", "string")
    assert_one_sentence(outcome)
    assert "The schema does not fit." in outcome.err


def test_an_answer_that_is_no_schema_is_told_so(admin: AdminStub) -> None:
    admin.answer("GET", f"{T}/schema", 200, [])
    assert_one_sentence(schemas(admin, "get", "orders"))
