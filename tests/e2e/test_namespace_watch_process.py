"""Namespace watches on real server processes: one that is stopped for a while, bursts, crowds of filters, and peers
that do not read."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from controller.transitions import TopicLimits, Transitions
from metadata import keys
from metadata.store import TopicStore, open_store
from protocol.client.connection import connect
from protocol.framing import encode
from protocol.hashing import topic_set_hash
from protocol.names import NamespaceName
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.e2e.peers import dialled, greeted
from tests.e2e.vela_process import VelaServer
from tests.faults.catalogue import BLUE, FILTERS, RED, Catalogue, numbered, topic
from tests.faults.namespace_views import NamespaceView, NamespaceViewer, until_equal
from tests.gateway.served import Client, connect_frame
from tests.properties.mirrors import Mirror
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NAMESPACE: Final = NamespaceName("public", "default")
PROBE_INTERVAL: Final = 0.2
PROBING: Final = ("--probe-interval", "200ms", "--store-timeout", "1s")
MEGABYTE: Final = 1024 * 1024
PATIENCE: Final = 60.0


@asynccontextmanager
async def viewing(server: VelaServer) -> AsyncIterator[NamespaceViewer]:
    async with connect(server.pulsar_url) as connection, trio.open_nursery() as nursery:
        yield NamespaceViewer(connection, nursery)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def writing(store: ValkeyProcess) -> AsyncIterator[tuple[TopicStore, Catalogue]]:
    """A writer that is no server."""
    async with open_store(store.url) as opened:
        yield opened, Catalogue(Transitions(opened, TopicLimits()))


async def next_update(client: Client, mirror: Mirror, within: float = 30) -> None:
    """Take in the next command, which must be an update of this watch."""
    command = await client.receive(within)
    assert command.type == BaseCommand.WATCH_SCALABLE_TOPICS_UPDATE, command
    assert command.watchScalableTopicsUpdate.watch_id == mirror.watch_id
    mirror.take(command.watchScalableTopicsUpdate)


# A server that is stopped for a while.


def stay(store: ValkeyProcess) -> None:
    """What the store had to say waits in the server's sockets."""


def hang_up(store: ValkeyProcess) -> None:
    """The store has given up on the server's subscription, and with it on all that was to be said there."""
    store.command("CLIENT", "KILL", "TYPE", "pubsub")


def trim(store: ValkeyProcess) -> None:
    """The server's place in the change logs is no longer there."""
    for bucket in range(keys.BUCKETS):
        store.client().xtrim(keys.changes_key(bucket), maxlen=0, approximate=False)


def is_stopped(server: VelaServer) -> bool:
    return Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("meanwhile", [stay, hang_up, trim])
async def test_a_server_that_was_stopped_tells_what_it_missed_once(
    tmp_path: Path, valkey: ValkeyProcess, meanwhile: Callable[[ValkeyProcess], None]
) -> None:
    with VelaServer.start(tmp_path, "--store", valkey.url, *PROBING) as server:
        async with writing(valkey) as (store, written), viewing(server) as viewer, dialled(server) as stranger:
            await written.create(numbered("blue", 30), BLUE)
            await written.create(numbered("red", 30), RED)
            views = [await viewer.watch(filters=wanted) for wanted in FILTERS]
            await written.until_told(views)
            views.append(await viewer.watch(held=written.selected({})))
            await eventually(lambda: server.metric("vela_snapshots_spared_total") == 1)
            mark = written.mark(views)
            stale = written.selected({})

            server.signal(signal.SIGSTOP)
            await eventually(lambda: is_stopped(server))
            stopped_at = trio.current_time()
            await written.create(numbered("new", 20), BLUE)
            await written.delete(numbered("blue", 10))
            await written.create_again(numbered("red", 5), RED)
            await written.paint(numbered("blue", 20)[10:], RED)
            await written.paint(numbered("red", 30)[25:], BLUE)
            # Of what came and went nobody will ever hear.
            await written.create(numbered("passing", 20), RED)
            await written.delete(numbered("passing", 20))
            meanwhile(valkey)
            # On a connection that is there, with what was true and with what is; and on a new one.
            newcomers = [await viewer.watch(filters=wanted) for wanted in FILTERS]
            back = [await viewer.watch(held=stale), await viewer.watch(held=written.selected({}))]
            mirror = Mirror(1, NAMESPACE)
            await stranger.send(connect_frame() + encode(mirror.opening()))
            await trio.sleep_until(stopped_at + 10 * PROBE_INTERVAL)
            assert not any(view.updates for view in (*newcomers, *back))

            server.signal(signal.SIGCONT)
            assert (await stranger.receive(within=30)).type == BaseCommand.CONNECTED
            await until_equal(store, [*views, *newcomers, *back])
            while mirror.topics != written.selected({}):
                await next_update(stranger, mirror)
            await eventually(lambda: server.request("GET", "/readyz").status_code == 200, within=30)
            await until_equal(store, [*views, *newcomers, *back])
            await mark.until_each_change_was_told_once()
            # The server may hear of newcomers before it hears of the changes: then it tells them what it knows, and
            # the changes right after.
            for view in newcomers:
                assert view.kinds[0] == "snapshot"
                assert view.kinds.count("snapshot") == 1
            assert mirror.snapshots == 1

            await written.create(numbered("later", 10), RED)
            await written.until_told([*views, *newcomers, *back])
            await mark.until_each_change_was_told_once()
        assert "Traceback" not in server.err


# Bursts and crowds.


@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_thousands_of_creations_are_told_once_to_watchers_of_every_kind_on_both_servers(
    tmp_path: Path, valkey: ValkeyProcess, count: int
) -> None:
    many = numbered("topic", count)
    async with AsyncExitStack() as stack:
        servers = [
            stack.enter_context(VelaServer.start(tmp_path / name, "--store", valkey.url)) for name in ("one", "other")
        ]
        store, written = await stack.enter_async_context(writing(valkey))
        viewers = [await stack.enter_async_context(viewing(server)) for server in servers for _ in range(2)]
        views = [await viewer.watch(filters=wanted) for viewer in viewers for wanted in FILTERS]
        await written.until_told(views)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(written.create, many[::2], BLUE)
            nursery.start_soon(written.create, many[1::2], RED)
        await written.until_told(views, within=PATIENCE)
        # The others hold the same; reading thousands of records for each would take longer than all the rest.
        await until_equal(store, views[: len(FILTERS)])
        for view in views:
            assert_told_once(view)
            assert len(view.updates) < len(many) / 20
        # Whoever comes back with the hash of what the store says has nothing to be told, on either server.
        back = [
            await viewer.watch(filters=wanted, held=written.selected(wanted))
            for viewer in viewers[::2]
            for wanted in FILTERS
        ]
        await eventually(lambda: [server.metric("vela_snapshots_spared_total") for server in servers] == [3, 3])
        assert not any(view.updates for view in back)
        assert {view.hash for view in views if not view.filters} == {topic_set_hash(map(str, many))}


def assert_told_once(view: NamespaceView) -> None:
    """Every topic that is held was added once, in a snapshot or a diff, and none was removed."""
    told = Counter(name for update in view.updates for name in (*update.snapshot.topics, *update.diff.added))
    assert told == Counter(view.held or ())
    assert not any(update.diff.removed for update in view.updates)


@pytest.mark.parametrize("groups", [100, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(300)])])
async def test_a_crowd_of_filters_at_once_gets_its_snapshots_and_does_not_hold_up_a_lookup(
    tmp_path: Path, valkey: ValkeyProcess, groups: int
) -> None:
    names = numbered("topic", 2_000)
    with VelaServer.start(tmp_path, "--store", valkey.url) as server:
        async with writing(valkey) as (_, written), viewing(server) as viewer, viewing(server) as other:
            async with trio.open_nursery() as nursery:
                for number in range(groups):
                    nursery.start_soon(written.create, names[number::groups], {"group": str(number)})
            views = [await viewer.watch(filters={"group": str(number)}) for number in range(groups)]
            views.append(await viewer.watch(filters={"group": "none"}))
            await eventually(lambda: server.metric("vela_namespace_groups") == groups + 1)
            # Beside the crowd and behind it.
            for connection in (other.connection, viewer.connection):
                lookup = await connection.open_watch(str(names[7]), create_if_missing=False)
                with trio.fail_after(PATIENCE):
                    assert (await lookup.next()).HasField("dag")
                assert not all(view.updates for view in views), "the lookup waited for all the snapshots"
            await written.until_told(views, within=2 * PATIENCE)
            assert [view.kinds for view in views] == [["snapshot"]] * len(views)
            await written.create(numbered("new", 3), {"group": "5"})
            await written.paint(names[5:6], {"group": "6"})
            await written.until_told(views)
            assert {view.filters["group"] for view in views if len(view.updates) > 1} == {"5", "6"}


# Peers that do not read.


def long_names(prefix: str, count: int) -> list[str]:
    """As long as names may be, nearly."""
    return [f"{prefix}-{'long-' * 180}{number}" for number in range(count)]


async def come_and_go(
    written: Catalogue, names: list[str], views: list[NamespaceView], sample: Callable[[], None]
) -> None:
    """Some at a time, each of which reaches these watchers before the next: nobody waits for one that does not read."""
    for start in range(0, len(names), 20):
        some = [topic(name) for name in names[start : start + 20]]
        await written.create(some, BLUE if start % 40 else RED)
        await written.until_told(views)
        sample()
        await written.delete(some[1:])
        await written.until_told(views)
        sample()


async def test_a_watcher_that_does_not_read_is_owed_little_delays_nobody_and_is_right_once_it_reads_on(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    with VelaServer.start(tmp_path, "--store", valkey.url, "--coalesce", "5ms") as server:
        async with (
            writing(valkey) as (store, written),
            viewing(server) as viewer,
            viewing(server) as twin,
            greeted(server, receive_buffer=4_096) as slow,
        ):
            mirrors = [Mirror(1, NAMESPACE), Mirror(2, NAMESPACE, tuple(BLUE.items()))]
            for mirror in mirrors:
                await slow.send(encode(mirror.opening()))
                await next_update(slow, mirror)
            views = [await viewer.watch(watch_id=1), await twin.watch(watch_id=1), await viewer.watch(filters=BLUE)]
            await written.until_told(views)
            owed: list[float] = []
            await come_and_go(
                written, long_names("a", 2_000), views, lambda: owed.append(server.metric("vela_outbox_bytes"))
            )
            assert max(owed) < MEGABYTE
            assert min(owed[-10:]) > 0, "the kernel took everything"
            # The two with the same set were told the same, step by step.
            assert views[0].updates == views[1].updates

            frames = 0
            while any(mirror.topics != written.selected(dict(mirror.filters)) for mirror in mirrors):
                command = (await slow.receive(within=30)).watchScalableTopicsUpdate
                mirrors[command.watch_id - 1].take(command)
                frames += 1
                assert server.metric("vela_outbox_bytes") < MEGABYTE
            assert frames < len(views[0].updates) / 4
            await until_equal(store, views)
            await eventually(lambda: server.metric("vela_outbox_bytes") == 0)
            await written.create([topic("last")], BLUE)
            for _ in mirrors:
                command = (await slow.receive(within=30)).watchScalableTopicsUpdate
                mirrors[command.watch_id - 1].take(command)
            await written.until_told(views)
            assert [mirror.topics for mirror in mirrors] == [written.selected({}), written.selected(BLUE)]
            assert server.metric("vela_stalls_total") == 0


async def test_a_watcher_that_never_reads_is_cut_and_counted_and_the_others_stay(
    tmp_path: Path, valkey: ValkeyProcess
) -> None:
    flags = ("--store", valkey.url, "--coalesce", "5ms", "--stall-limit", "1s")
    with VelaServer.start(tmp_path, *flags) as server:
        async with (
            writing(valkey) as (store, written),
            viewing(server) as viewer,
            greeted(server, receive_buffer=4_096) as dead,
        ):
            views = [await viewer.watch(filters=wanted) for wanted in FILTERS]
            await dead.send(encode(Mirror(1, NAMESPACE).opening()))
            await eventually(lambda: server.metric("vela_namespace_watches") == 4)
            await come_and_go(written, long_names("a", 400), views, lambda: None)
            await eventually(lambda: server.metric("vela_stalls_total") == 1, within=30)
            assert server.metric("vela_connections_closed_total", reason="stalled") == 1
            await eventually(lambda: server.metric("vela_namespace_watches") == 3)
            assert (server.metric("vela_connections"), server.metric("vela_outbox_bytes")) == (1, 0)
            assert await dead.is_hung_up()
            await come_and_go(written, long_names("b", 40), views, lambda: None)
            await until_equal(store, views)
            assert server.metric("vela_stalls_total") == 1
        assert "Traceback" not in server.err
