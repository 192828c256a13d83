"""What a server cannot start with is told in one sentence, without secrets, and nothing is left behind."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.e2e.vela_process import Outcome, VelaServer, run_vela
from tests.gateway.vela_command import closed_port
from tests.support.ports import HOST

pytestmark = pytest.mark.slow


def refused_start(directory: Path, **changes: str) -> Outcome:
    """`vela serve` with these settings, which must end by itself with code 1 and no ready line."""
    flags = {"listen": f"{HOST}:0", "http": f"{HOST}:0", "data_dir": str(directory / "data")} | changes
    given = [part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value)]
    outcome = run_vela("serve", *given, cwd=directory)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.sentence.startswith("vela: ")
    assert "sekret" not in outcome.err
    return outcome


def test_second_server_on_the_same_data_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with VelaServer.start(tmp_path) as server:
        refused = refused_start(tmp_path, data_dir=str(server.data_dir))
        assert refused.sentence == (
            f"vela: another Vela is using {server.data_dir}, pid {server.pid}: stop it or choose another --data-dir"
        )
        server.create("still-here")


@pytest.mark.parametrize("flag", ["listen", "http"])
def test_port_in_use_is_refused_and_leaves_no_store_behind(tmp_path: Path, flag: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        address = f"{HOST}:{taken.getsockname()[1]}"
        refused = refused_start(tmp_path, **{flag: address})
    assert refused.sentence == (
        f"vela: Cannot listen on {address}: Address already in use. Stop what listens there, or choose another address."
    )
    with VelaServer.start(tmp_path):
        pass


def test_store_that_nobody_serves_is_refused(tmp_path: Path) -> None:
    port = closed_port()
    refused = refused_start(
        tmp_path, store=f"redis://u:sekret@{HOST}:{port}/0", store_timeout="200ms", store_connect_timeout="200ms"
    )
    assert f"{HOST}:{port}" in refused.sentence


def test_store_that_never_answers_is_refused(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as silent:
        port = silent.getsockname()[1]
        refused = refused_start(
            tmp_path, store=f"redis://u:sekret@{HOST}:{port}/0", store_timeout="200ms", store_connect_timeout="200ms"
        )
    assert f"{HOST}:{port}" in refused.sentence


BAD_SETTINGS = {
    "duration": ("stall_limit", "soon", 'stall_limit cannot be "soon" (from flag --stall-limit)'),
    "address": ("listen", "6650", 'listen cannot be "6650" (from flag --listen)'),
    "no-such-host": ("listen", "no.such.host.invalid:0", "Cannot listen on no.such.host.invalid:0: no such host."),
    "store-scheme": ("store", "mysql://u:sekret@h/0", "from flag --store"),
    "store-port": ("store", "redis://u:sekret@h:x/0", "the store URL names no usable host and port"),
    "store-option": ("store", "redis://u:sekret@h/0?tls=1", "the store URL option 'tls' is unknown"),
    "no-such-file": ("config", "nowhere.toml", "The settings file nowhere.toml cannot be read"),
    "data-in-a-file": ("data_dir", "/dev/null", "cannot keep data in /dev/null"),
}


@pytest.mark.parametrize(("name", "value", "sentence"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_bad_setting_is_refused(tmp_path: Path, name: str, value: str, sentence: str) -> None:
    assert sentence in refused_start(tmp_path, **{name: value}).sentence


def test_typing_mistake_in_the_settings_file_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    file = tmp_path / "vela.toml"
    file.write_text('lisen = "127.0.0.1:0"\n')
    sentence = refused_start(tmp_path, config=str(file)).sentence
    assert sentence == f'vela: Unknown key "lisen" in file {file}: did you mean listen?'
