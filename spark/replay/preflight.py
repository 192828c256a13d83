"""A look at store and target before a replay: both there, one belonging to the other, the store free to use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio

from metadata.errors import StoreError
from metadata.lanes import Timeouts
from metadata.store import TopicStore, open_store
from metadata.unwrap import unwrapped
from metadata.urls import StoreUrl
from protocol.client import ClientConnection, RawNamespaceWatch, connect
from protocol.errors import ProtocolError
from protocol.names import NamespaceName, TopicName
from protocol.wire import pulsar_api_pb2 as api
from spark.errors import JobError
from spark.replay import records
from spark.replay.namespaces import enlist, living, remove_namespace, renew_mark, run_of, runs_in, topics_by_namespace
from spark.replay.plans import ReplayPlan

_TOPIC: Final = "check"
_CONNECT_LIMIT_S: Final = 10.0
ARRIVAL_LIMIT_S: Final = 5.0


async def check_store(store_url: str, *, allow_used: bool, timeouts: Timeouts | None = None) -> None:
    """Refuse a store that is down, or one that is in use unless that is allowed. Nothing is changed."""
    try:
        async with _looked_at(store_url, timeouts or Timeouts()) as store:
            counts = await topics_by_namespace(store)
            if not allow_used:
                await _check_free(store, counts)
    except StoreError as error:
        raise JobError(f"The store cannot be used: {_sentence(error)}") from None


async def check_target(target: str) -> None:
    """Refuse a target that is down or knows no scalable topics."""
    try:
        async with connect(target, timeout=_CONNECT_LIMIT_S):
            pass
    except ProtocolError as error:
        raise JobError(f"The target cannot be used: {_sentence(error)}") from None


async def check_belonging(plan: ReplayPlan, *, within: float = ARRIVAL_LIMIT_S) -> None:
    """See a topic that is created in the store arrive at a watch of the target; both are removed again."""
    namespace = NamespaceName(plan.namespaces[0].partition("/")[0], f"{plan.prefix}{_TOPIC}")
    topic = TopicName.scalable(namespace.tenant, namespace.namespace, _TOPIC)
    try:
        async with open_store(plan.store_url) as store:
            await enlist(store, plan.run_id)
            await renew_mark(store, plan.run_id)
            await store.create_namespace(namespace)
            try:
                async with connect(plan.target, timeout=_CONNECT_LIMIT_S) as connection:
                    await _see(store, connection, topic, plan.target, within)
            finally:
                with trio.CancelScope(shield=True):
                    await remove_namespace(store, namespace)
    except StoreError as error:
        raise JobError(f"The store cannot be used: {_sentence(error)}") from None
    except ProtocolError as error:
        raise JobError(f"The target cannot be used: {_sentence(error)}") from None


async def _see(store: TopicStore, connection: ClientConnection, topic: TopicName, target: str, within: float) -> None:
    watch = await connection.open_namespace_watch(str(topic.namespace_name))
    record = records.made(0, 1)
    with trio.move_on_after(within):
        await _next(watch)
        await store.create(topic, record.value, record.descriptors)
        while str(topic) not in (await _next(watch)).diff.added:
            pass
        return
    raise JobError(
        f"A topic created in the store did not arrive at {target} within {within:g} s: "
        "give the --store that this server works on."
    )


async def _next(watch: RawNamespaceWatch) -> api.CommandWatchScalableTopicsUpdate:
    update = await watch.next()
    if update.HasField("error"):
        raise JobError(f"The target does not let namespaces be watched: {update.message}")
    return update


@asynccontextmanager
async def _looked_at(url: str, timeouts: Timeouts) -> AsyncIterator[TopicStore]:
    """A store to be read only: opening it for use would found it where nobody has used it yet."""
    store = TopicStore(StoreUrl.parse(url), timeouts, change_log_length=1)
    with unwrapped():
        async with trio.open_nursery() as nursery:
            for lane in store.lanes:
                await nursery.start(lane.run)
            await store.directory.refresh()
            yield store
            nursery.cancel_scope.cancel()


async def _check_free(store: TopicStore, counts: Mapping[NamespaceName, int]) -> None:
    runs = await runs_in(store)
    own = {namespace: topics for namespace, topics in counts.items() if run_of(namespace) not in runs}
    if own:
        raise JobError(
            f"The store is in use, it holds {sum(own.values()):,} topics in {len(own):,} namespaces: "
            "give an empty one, or say --allow-used-store to replay beside them."
        )
    if runs:
        alive = await living(store, runs)
        if alive:
            raise JobError(f"Another replay is running on this store ({', '.join(sorted(alive))}): wait for its end.")
        raise JobError(
            f"The store holds what is left of {len(runs):,} replays that were killed: "
            "remove it with: vela trace replay --clean --store URL"
        )


def _sentence(error: Exception) -> str:
    text = str(error).rstrip()
    return text if text.endswith((".", "!")) else f"{text}."
