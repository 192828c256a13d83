"""`vela config show`, and settings as the command line gives them."""

import json
from pathlib import Path

import pytest

from gateway.settings import ROWS
from tests.gateway.vela_command import vela


def test_every_value_is_shown_with_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "vela.toml"
    file.write_text('keep_alive = "1m"')
    outcome = vela(
        "config", "show", "--config", str(file), "--no-auto-create", "--listen", "[::1]:0", VELA_STALL_LIMIT="90s"
    )
    lines = {line.split()[0]: " ".join(line.split()[1:]) for line in outcome.out.splitlines()}
    assert outcome.code == 0
    assert set(lines) == {"setting"} | {row.name for row in ROWS}
    assert lines["keep_alive"] == f"1m file {file}"
    assert lines["auto_create"] == "false flag --no-auto-create"
    assert lines["listen"] == "[::1]:0 flag --listen"
    assert lines["stall_limit"] == "90s environment VELA_STALL_LIMIT"
    assert lines["http"] == "127.0.0.1:8080 default"


def test_json_has_the_same_and_hides_the_password() -> None:
    outcome = vela("config", "show", "--json", VELA_STORE="redis://:s3cret@h:1/0")
    values = {entry["name"]: entry for entry in json.loads(outcome.out)}
    assert values["store"] == {
        "name": "store",
        "value": "redis://:***@h:1/0",
        "origin": "environment VELA_STORE",
    }
    assert "s3cret" not in vela("config", "show", VELA_STORE="redis://:s3cret@h:1/0").out


@pytest.mark.parametrize("command", [("serve",), ("config", "show"), ("doctor",)], ids=" ".join)
def test_a_bad_setting_is_one_sentence_and_exit_code_1(command: tuple[str, ...]) -> None:
    outcome = vela(*command, VELA_PROBE_INTERVAL="soon")
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err == (
        'vela: probe_interval cannot be "soon" (from environment VELA_PROBE_INTERVAL): '
        "give a duration such as 50ms, 3s, 5m or 1h, from 10ms to 1h.\n"
    )


def test_a_missing_settings_file_is_one_sentence_and_exit_code_1() -> None:
    outcome = vela("serve", "--config", "/no/such/file")
    assert (outcome.code, outcome.err) == (
        1,
        "vela: The settings file /no/such/file cannot be read: No such file or directory.\n",
    )
