"""Settings as they show on a running server: which source wins, and how the log looks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import httpx
import pytest

from protocol.client import requests
from protocol.framing import encode
from tests.e2e.peers import assert_serving, dialled, full, greeted
from tests.e2e.vela_process import SCALABLE, VelaServer, run_vela
from tests.gateway.served import connect_frame
from tests.support.ports import HOST, ReservedPort

pytestmark = pytest.mark.slow


@pytest.fixture
def port() -> Iterator[int]:
    reserved = ReservedPort()
    yield reserved.number
    reserved.release()


async def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path: Path, port: int) -> None:
    file = tmp_path / "vela.toml"
    file.write_text(
        f'listen = "{HOST}:{port}"\nadvertise = "pulsar://from-file:1"\nmax_message_size = "1MB"\nmax_segments = 3\n'
    )
    advertised = f"pulsar://localhost:{port}"
    variables = {
        "VELA_CONFIG": str(file),
        "VELA_ADVERTISE": advertised,
        "VELA_MAX_MESSAGE_SIZE": "2MB",
        "VELA_MAX_SEGMENTS": "",
    }
    flags = ("--max-message-size", "3MB", "--listen", f"{HOST}:{port}")
    with VelaServer.start(tmp_path, *flags, **variables) as server:
        assert server.pulsar_url == advertised
        async with dialled(server) as client:
            await client.send(connect_frame())
            assert (await client.receive()).connected.max_message_size == 3 * 1024 * 1024
            await client.send(encode(requests.lookup(1, full("a"), authoritative=False)))
            assert (await client.receive()).lookupTopicResponse.brokerServiceUrl == advertised
        assert server.request("PUT", f"{SCALABLE}/a?numInitialSegments=3").status_code == 204
        assert server.request("PUT", f"{SCALABLE}/b?numInitialSegments=4").status_code == 412

    shown = run_vela("config", "show", "--json", *flags, variables=variables)
    rows = {row["name"]: (row["value"], row["origin"]) for row in json.loads(shown.out)}
    assert rows["max_message_size"] == ("3MB", "flag --max-message-size")
    assert rows["advertise"] == (advertised, "environment VELA_ADVERTISE")
    assert rows["max_segments"] == ("3", f"file {file}")
    assert rows["stall_limit"] == ("30s", "default")


def test_admin_api_answers_to_the_names_of_its_settings_only(tmp_path: Path, port: int) -> None:
    flags = ("--admin-hosts", "door.example, other.example", "--advertise-http", "http://front.example:80")
    with VelaServer.start(tmp_path, "--http", f"{HOST}:{port}", *flags):

        def status(name: str, path: str = SCALABLE) -> int:
            with httpx.Client(trust_env=False, verify=False, timeout=30) as client:
                return client.get(f"http://{HOST}:{port}{path}", headers={"host": name}).status_code

        for name in (HOST, "localhost", "door.example:443", "other.example", "front.example", socket.gethostname()):
            assert status(name) == 200, name
        assert status("evil.example") == 421
        assert status("evil.example", "/readyz") == 200


async def test_json_log_is_one_object_per_line_whatever_happens(tmp_path: Path) -> None:
    with VelaServer.start(tmp_path, "--log-format", "json", "--log-level", "debug") as server:
        async with greeted(server) as client:
            host, port = client.sock.getsockname()
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await client.is_hung_up()
        server.request("PUT", f"{SCALABLE}/a%0Ab")
        await assert_serving(server)
        outcome = server.stop()
    records = [json.loads(line) for line in outcome.err.splitlines()]
    for record in records:
        assert set(record) >= {"time", "level", "logger", "message"}
        assert datetime.fromisoformat(record["time"]).tzinfo is not None
    [closing] = [record for record in records if f"{host}:{port}" in record["message"]]
    assert (closing["level"], closing["logger"]) == ("warning", "gateway.connection")
    assert records[-1]["message"] == "stopping on SIGTERM"
