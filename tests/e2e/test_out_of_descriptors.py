"""A server that has no file descriptors left goes on with what it has, and says so once."""

from __future__ import annotations

import resource
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.vela_process import VelaServer
from tests.support.ports import HOST
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process can be set on Linux only"),
]


@pytest.mark.parametrize("port", ["HTTP", "binary"])
def test_want_of_descriptors_is_one_line_in_the_log_and_over_when_some_are_closed(tmp_path: Path, port: str) -> None:
    with VelaServer.start(tmp_path) as server:
        assert server.request("GET", "/healthz").status_code == 200
        limit = len(list(Path(f"/proc/{server.pid}/fd").iterdir())) + 10
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
        number = server.http_port if port == "HTTP" else server.port
        with ExitStack() as clients:
            for _ in range(30):
                clients.enter_context(socket.create_connection((HOST, number), timeout=30))
            # Over the connection that is open, which has all it needs. Ten failures take a second at the least.
            wait_until(lambda: server.metric("vela_accept_errors_total") >= 10)
        lines = [line for line in server.err.splitlines() if "accept" in line]
        assert len(lines) == 1, server.err
        assert f"cannot accept connections on the {port} port for now: Too many open files" in lines[0]
        with socket.create_connection((HOST, server.http_port), timeout=30) as late:
            late.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert late.recv(64).startswith(b"HTTP/1.1 200 ")
        assert server.stop().code == 0
