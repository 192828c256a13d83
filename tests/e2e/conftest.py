"""One running server for all tests that a server must survive anyway; it is replaced when one of them killed it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.vela_process import VelaServer


class SharedServer:
    """The server of this test process, started when it is first needed."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._server: VelaServer | None = None

    def alive(self) -> VelaServer:
        if self._server is None or not self._server.running:
            self._server = VelaServer.start(
                self._factory.mktemp("server"), "--max-body", "64KB", "--deletion-notice", "200ms"
            )
        return self._server

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServer]:
    shared = SharedServer(tmp_path_factory)
    yield shared
    shared.close()


@pytest.fixture
def server(shared_server: SharedServer) -> Iterator[VelaServer]:
    """A running server, shared with other tests: tell topics apart by `topic`, and counters by their growth."""
    server = shared_server.alive()
    before = len(server.err)
    yield server
    assert server.running, server.err
    assert "Traceback" not in server.err[before:]


@pytest.fixture
def topic(tmp_path: Path) -> str:
    """A local topic name that no other test uses."""
    return tmp_path.name
