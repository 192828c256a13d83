"""A running server, the Java clients and the way to them; what cannot be had here is skipped, but never in CI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from tests.e2e.vela_process import VelaServer
from tests.interop.java_build import JavaMissing, class_path
from tests.interop.java_peer import JavaAdmin, JavaClient, JavaPeer

HERE: Final = Path(__file__).parent
# The first test may have to wait for Maven to download the clients.
TIME_LIMIT: Final = 700


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.timeout(TIME_LIMIT))


@pytest.fixture(scope="session")
def java_class_path() -> str:
    try:
        return class_path()
    except JavaMissing as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must run the tests with the Java clients: {missing}", pytrace=False)
        pytest.skip(f"no tests with the Java clients: {missing}")


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VelaServer]:
    # What was read stays, so that tests may go back to it.
    flags = ("--consumer-grace", "1s", "--retention", "1h")
    with VelaServer.start(tmp_path_factory.mktemp("server"), *flags) as server:
        yield server


@pytest.fixture
def server(running_server: VelaServer) -> Iterator[VelaServer]:
    """The server that all tests share which do not kill it; it never shows a stack trace."""
    before = len(running_server.err)
    yield running_server
    assert running_server.running, running_server.err
    assert "Traceback" not in running_server.err[before:], running_server.err[before:]


@pytest.fixture(scope="session")
def java(java_class_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaPeer]:
    with JavaPeer(java_class_path, tmp_path_factory.mktemp("java") / "log") as peer:
        yield peer


@pytest.fixture
def client(java: JavaPeer, server: VelaServer) -> Iterator[JavaClient]:
    """A client of this test's own, so that its connections end with it."""
    client = java.client(server.pulsar_url)
    yield client
    # It takes seconds to end its threads, for which nobody has to wait.
    client.closing()


@pytest.fixture
def admin(java: JavaPeer, server: VelaServer) -> JavaAdmin:
    return java.admin(server.http_url)


@pytest.fixture
def name(tmp_path: Path) -> str:
    """A local topic name that no other test uses."""
    return tmp_path.name


@pytest.fixture
def topic(name: str) -> str:
    """The same name in full, as a scalable topic."""
    return f"topic://public/default/{name}"


@pytest.fixture
def classic(server: VelaServer) -> Iterator[Any]:
    """A client of PyPI's `pulsar-client`."""
    client = pulsar.Client(server.pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.fixture
def classic_topic(name: str) -> str:
    return f"persistent://public/default/{name}"
