"""What replays leave in a store is found by its names and removed; everything else stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.lanes import Timeouts
from metadata.store import TopicStore, open_store
from protocol.names import NamespaceName, TopicName
from spark.errors import JobError
from spark.profiles import Profile
from spark.replay import preflight, records, runs
from spark.replay.namespaces import enlist, mark_key, progress_key, remove_run, renew_mark, run_of, runs_in
from spark.replay.plan import Extent, Options, make_plan
from tests.e2e.vela_process import VelaServer
from tests.support.ports import HOST, ReservedPort
from tests.support.processes import ValkeyProcess


async def create(store: TopicStore, *names: str) -> None:
    record = records.made(3, 1)
    for name in names:
        topic = TopicName.parse(f"topic://{name}")
        await store.ensure_namespace(topic.namespace_name)
        await store.create(topic, record.value, record.descriptors)


@pytest.mark.parametrize(
    ("name", "run_id"),
    [
        ("shop/replay-3f9a2c-orders", "3f9a2c"),
        ("shop/replay-3f9a2c-", "3f9a2c"),
        ("shop/replay-orders", None),
        ("shop/replay-3F9A2C-orders", None),
        ("shop/my-replay-3f9a2c-orders", None),
        ("replay-3f9a2c-shop/orders", None),
    ],
)
def test_namespaces_of_runs_are_known_by_their_names(name: str, run_id: str | None) -> None:
    assert run_of(NamespaceName.parse(name)) == run_id


async def test_removing_a_run_leaves_all_others_alone(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        kept = ("shop/orders/a", "shop/replay-bbbbbb-orders/a")
        await create(
            store, *kept, "shop/replay-aaaaaa-orders/a", "shop/replay-aaaaaa-orders/b", "lab/replay-aaaaaa-x/c"
        )
        await enlist(store, "aaaaaa")
        await enlist(store, "bbbbbb")
        await renew_mark(store, "aaaaaa")
        await store.commands.call(0, "HSET", progress_key("aaaaaa"), "0", "{}")
        assert await remove_run(store, "aaaaaa") == 2
        assert [str(name) for name in await store.list_namespaces()] == ["shop/orders", "shop/replay-bbbbbb-orders"]
        assert [await store.list_topics(NamespaceName.parse(name.rpartition("/")[0])) for name in kept] == [
            ["a"],
            ["a"],
        ]
        assert await remove_run(store, "aaaaaa") == 0
        with valkey.client() as client:
            assert not client.exists(mark_key("aaaaaa"), progress_key("aaaaaa"))


async def test_namespaces_that_are_only_called_like_those_of_a_run_are_never_removed(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await create(store, "acme/replay-facade-a/x")
        assert await runs.clean(valkey.url) == ([], [])
        assert await store.list_topics(NamespaceName.parse("acme/replay-facade-a")) == ["x"]


async def test_cleaning_removes_dead_runs_and_no_living_one(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await create(store, "shop/orders/a", "shop/replay-aaaaaa-orders/a", "shop/replay-bbbbbb-orders/a")
        await enlist(store, "aaaaaa")
        await enlist(store, "bbbbbb")
        await renew_mark(store, "bbbbbb")
        assert await runs.clean(valkey.url) == (["aaaaaa"], ["bbbbbb"])
        assert list(await runs_in(store)) == ["bbbbbb"]


async def test_store_in_use_is_refused_with_how_much_is_there(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await create(store, "shop/orders/a", "shop/orders/b", "lab/x/c")
        with pytest.raises(JobError, match="3 topics in 2 namespaces"):
            await preflight.check_store(valkey.url, allow_used=False)
        await preflight.check_store(valkey.url, allow_used=True)


async def test_leftovers_are_refused_with_the_way_to_remove_them(valkey: ValkeyProcess) -> None:
    async with open_store(valkey.url) as store:
        await create(store, "shop/replay-aaaaaa-orders/a")
        await enlist(store, "aaaaaa")
        with pytest.raises(JobError, match="--clean"):
            await preflight.check_store(valkey.url, allow_used=False)
        await renew_mark(store, "aaaaaa")
        with pytest.raises(JobError, match=r"Another replay is running on this store \(aaaaaa\)"):
            await preflight.check_store(valkey.url, allow_used=False)


async def test_looking_at_an_empty_store_writes_nothing_into_it(fresh_valkey: ValkeyProcess) -> None:
    await preflight.check_store(fresh_valkey.url, allow_used=False)
    with fresh_valkey.client() as client:
        assert client.dbsize() == 0


async def test_store_and_target_that_are_down_are_named() -> None:
    port = ReservedPort()
    hasty = Timeouts(connect=0.5, silence=0.5, patience=0.5)
    with pytest.raises(JobError, match="The store cannot be used"):
        await preflight.check_store(f"redis://{HOST}:{port.number}", allow_used=False, timeouts=hasty)
    with pytest.raises(JobError, match=f"The target cannot be used: Nothing answers at pulsar://{HOST}:{port.number}"):
        await preflight.check_target(f"pulsar://{HOST}:{port.number}")


@pytest.mark.slow
async def test_target_on_another_store_is_found_out(valkey: ValkeyProcess, tmp_path: Path) -> None:
    with VelaServer.start(tmp_path / "own") as other, VelaServer.start(tmp_path, "--store", valkey.url) as server:
        extent = Extent(1, 0, 1, ("shop/orders",), 1.0, 1)
        for target, belongs in ((server, True), (other, False)):
            options = Options(Path("trace"), target.pulsar_url, valkey.url)
            plan = make_plan(options, "aaaaaa", Profile(), extent, 1)
            if belongs:
                await preflight.check_belonging(plan)
            else:
                with pytest.raises(JobError, match="give the --store that this server works on"):
                    await preflight.check_belonging(plan, within=0.5)
            async with open_store(valkey.url) as store:
                assert not any((await runs_in(store)).values())
