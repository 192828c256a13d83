"""A small client for trio, used by the command line, the tests and the benchmarks.

Follow a topic for as long as it exists, whatever happens to the connection::

    async with watch_topic("pulsar://127.0.0.1:6650", "topic://public/default/orders") as updates:
        async for update in updates:
            if update.HasField("error"):
                print("gone:", update.message)
            else:
                print("epoch", update.dag.epoch, "with", len(update.dag.segments), "segments")

Or hold many watches on one connection::

    async with connect("pulsar://127.0.0.1:6650") as connection:
        watches = [await connection.open_watch(topic) for topic in topics]
        first = await watches[0].next()
"""

from protocol.client.addresses import ServiceAddress
from protocol.client.connection import ClientConnection, Watch, connect
from protocol.client.errors import (
    BadServiceUrl,
    ConnectionLost,
    RequestTimedOut,
    ScalableTopicsUnsupported,
    ServerMisbehaved,
    ServerRefused,
)
from protocol.client.lookups import connect_for_topic
from protocol.client.watches import TopicWatch, WatchState, watch_topic

__all__ = [
    "BadServiceUrl",
    "ClientConnection",
    "ConnectionLost",
    "RequestTimedOut",
    "ScalableTopicsUnsupported",
    "ServerMisbehaved",
    "ServerRefused",
    "ServiceAddress",
    "TopicWatch",
    "Watch",
    "WatchState",
    "connect",
    "connect_for_topic",
    "watch_topic",
]
