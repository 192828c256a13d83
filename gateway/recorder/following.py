"""A recorder without a server: follows a store by itself, on a feed and a read-back of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from gateway.feed_switch import FeedSwitch
from gateway.recorder.recorder import Recorder
from gateway.recorder.recording import Plan, recording
from metadata import keys
from metadata.feed import ChangeFeed
from metadata.store import open_store
from metadata.unwrap import unwrapped
from sessions.readback import ReadBack

# As the server's default.
_PROBE_INTERVAL: Final = 3.0


@asynccontextmanager
async def following(store_url: str, plan: Plan) -> AsyncIterator[Recorder]:
    """A recorder that hears the whole store inside the block. Raises StoreError and TraceError."""
    with unwrapped():
        async with (
            open_store(store_url) as store,
            recording(plan, store) as recorder,
            trio.open_nursery() as nursery,
        ):
            readback = ReadBack(
                nursery=nursery,
                read=lambda topics: store.read(feed.lane, topics),
                trusted=lambda bucket: feed.trusted(bucket),
                route=lambda bucket: store.directory.owner(keys.BUCKET_SLOTS[bucket]),
            )
            if plan.values:
                readback.add(recorder.values)
            feed = ChangeFeed(store, FeedSwitch(readback), probe_interval=_PROBE_INTERVAL, observer=recorder)
            nursery.start_soon(feed.run)
            nursery.start_soon(recorder.run)
            await feed.wait_whole()
            yield recorder
            nursery.cancel_scope.cancel()
