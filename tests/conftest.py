"""Fixtures that give every test a real store: one per worker where that is safe, a new one where it is not."""

import signal
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from tests.support.processes import ValkeyProcess
from tests.support.redises import redis_program, tested_versions
from tests.support.valkeys import (
    Cluster,
    Replicated,
    Standalone,
    Topology,
    start_cluster,
    start_replicated,
    start_standalone,
)

# Ignored by whoever started the tests in the background, it would be ignored by all that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something about the machine only.
hypothesis.settings.register_profile(
    "patient",
    parent=hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")

STARTERS: dict[str, Callable[[], Topology]] = {
    "standalone": start_standalone,
    "replica": start_replicated,
    "cluster": start_cluster,
    "redis": lambda: start_standalone(redis_program()),
    "redis-replica": lambda: start_replicated(redis_program()),
    "redis-cluster": lambda: start_cluster(redis_program()),
}
# What every test with a topology runs on, and what those run on that are marked with `also_on_redis`.
USUAL = ["standalone", "replica", "cluster", "redis"]
ALL = list(STARTERS)
# What takes seconds to start.
SLOW_TOPOLOGIES = {"replica", "cluster", "redis-replica", "redis-cluster"}
SLOW_FIXTURES = {"fresh_replicated", "fresh_cluster"}


def pytest_report_header() -> str:
    return f"stores: {tested_versions()}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marked = metafunc.definition.get_closest_marker("also_on_redis") is not None
    chosen = {mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")}
    if "topology" in metafunc.fixturenames and "topology" not in chosen:
        metafunc.parametrize("topology", ALL if marked else USUAL, indirect=True)
    if "valkey" in metafunc.fixturenames and marked:
        metafunc.parametrize("valkey", ["standalone", "redis"], indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        kinds = {parameters[name] for name in ("topology", "valkey") if name in parameters}
        if kinds & SLOW_TOPOLOGIES or SLOW_FIXTURES.intersection(item.fixturenames):
            item.add_marker(pytest.mark.slow)
        if any(str(kind).startswith("redis") for kind in kinds):
            item.add_marker(pytest.mark.redis)
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.spark)


class Stores:
    """The running topologies of this test process, by kind. A disturbed one is replaced, not repaired."""

    def __init__(self) -> None:
        self._running: dict[str, Topology] = {}

    def clean(self, kind: str) -> Topology:
        topology = self._running.get(kind)
        if topology is not None and topology.disturbed:
            topology.close()
            topology = None
        if topology is None:
            topology = self._running[kind] = STARTERS[kind]()
        topology.flush()
        return topology

    def close(self) -> None:
        for topology in self._running.values():
            topology.close()


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    stores = Stores()
    yield stores
    stores.close()


@pytest.fixture
def valkey(request: pytest.FixtureRequest, stores: Stores) -> ValkeyProcess:
    """A standalone server, empty and with its first configuration; shared by the tests of this process."""
    standalone = stores.clean(getattr(request, "param", "standalone"))
    assert isinstance(standalone, Standalone)
    return standalone.server


@pytest.fixture
def topology(request: pytest.FixtureRequest, stores: Stores) -> Topology:
    """Each kind of store in turn, empty. Disturb it as you like: the next test then gets a new one."""
    return stores.clean(request.param)


@pytest.fixture
def fresh_valkey() -> Iterator[ValkeyProcess]:
    """A standalone server of this test's own, for users, passwords and other things that a reset does not undo."""
    with ValkeyProcess().start() as server:
        yield server


@pytest.fixture
def fresh_replicated() -> Iterator[Replicated]:
    with start_replicated() as replicated:
        yield replicated


@pytest.fixture
def fresh_cluster() -> Iterator[Cluster]:
    """Three shards with one replica each."""
    with start_cluster(replicas=1) as cluster:
        yield cluster
