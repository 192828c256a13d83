"""A small client for trio, used by the command line, the tests and the benchmarks.

Follow a topic for as long as it exists, whatever happens to the connection::

    async with watch_topic("pulsar://127.0.0.1:6650", "topic://public/default/orders") as updates:
        async for update in updates:
            if update.HasField("error"):
                print("gone:", update.message)
            else:
                print("epoch", update.dag.epoch, "with", len(update.dag.segments), "segments")

Follow the topics of a namespace in the same way, here those of one team::

    async with watch_namespace("pulsar://127.0.0.1:6650", "public/default", properties={"team": "blue"}) as events:
        async for event in events:
            match event:
                case Snapshot(topics):
                    print(len(topics), "topics")
                case Change(added, removed):
                    print("came:", added, "went:", removed, "now:", len(events.topics))

A lost connection is replaced, and the server is sent a hash of what is known: if that is still right, nothing is told
again. Who iterates slowly is given what happened meanwhile in one event.

Produce to a topic and consume it. Keys stay in order and nothing that was confirmed is lost, while segments split,
merge and move and connections come and go::

    async with open_pool("pulsar://127.0.0.1:6650") as pool:
        async with open_producer(pool, "topic://public/default/orders") as producer:
            where = await producer.send(Message(b"one", key="customer-1"))
            print(where.topic, where.ledger, where.index)
            on_its_way = [await producer.post(Message(b"%d" % n, key="customer-1")) for n in range(100)]
        async with open_stream_consumer(
            pool, "topic://public/default/orders", "billing", initial_position="earliest"
        ) as consumer:
            async for message in consumer:
                print(message.key, message.value)
                await consumer.ack_cumulative(message)

`open_consumer` shares all segments with the other consumers of a subscription, `open_reader` needs no subscription.
All of them take `persistent://` topics and single segments as well.

Or hold many watches on one connection::

    async with connect("pulsar://127.0.0.1:6650") as connection:
        watches = [await connection.open_watch(topic) for topic in topics]
        first = await watches[0].next()
        namespace = await connection.open_namespace_watch("public/default")
        snapshot = (await namespace.next()).snapshot
"""

from protocol.client.addresses import ServiceAddress
from protocol.client.connection import ClientConnection, connect
from protocol.client.connection_watches import RawNamespaceWatch, Watch
from protocol.client.consuming import QueueConsumer, open_consumer, open_reader
from protocol.client.entries import ReceivedMessage
from protocol.client.errors import (
    AlreadyClosed,
    BadServiceUrl,
    ConnectionLost,
    MessageTooLarge,
    MixedBatch,
    RequestTimedOut,
    ScalableTopicsUnsupported,
    SendTimedOut,
    ServerMisbehaved,
    ServerRefused,
    UnreadableMessage,
    UpdatesNotTaken,
)
from protocol.client.lookups import connect_for_topic
from protocol.client.message_ids import MessageId
from protocol.client.namespaces import NamespaceWatch, watch_namespace
from protocol.client.outgoing import Message
from protocol.client.pool import ConnectionPool, open_pool
from protocol.client.producing import TopicProducer, open_producer
from protocol.client.reconnecting import WatchState
from protocol.client.sending import Sending
from protocol.client.streaming import StreamConsumer, open_stream_consumer
from protocol.client.subscriptions import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from protocol.client.topic_consumer import TopicConsumer
from protocol.client.topic_sets import Change, NamespaceEvent, Snapshot
from protocol.client.watches import TopicWatch, watch_topic

__all__ = [
    "EXCLUSIVE",
    "FAILOVER",
    "KEY_SHARED",
    "SHARED",
    "AlreadyClosed",
    "BadServiceUrl",
    "Change",
    "ClientConnection",
    "ConnectionLost",
    "ConnectionPool",
    "Message",
    "MessageId",
    "MessageTooLarge",
    "MixedBatch",
    "NamespaceEvent",
    "NamespaceWatch",
    "QueueConsumer",
    "RawNamespaceWatch",
    "ReceivedMessage",
    "RequestTimedOut",
    "ScalableTopicsUnsupported",
    "SendTimedOut",
    "Sending",
    "ServerMisbehaved",
    "ServerRefused",
    "ServiceAddress",
    "Snapshot",
    "StreamConsumer",
    "TopicConsumer",
    "TopicProducer",
    "TopicWatch",
    "UnreadableMessage",
    "UpdatesNotTaken",
    "Watch",
    "WatchState",
    "connect",
    "connect_for_topic",
    "open_consumer",
    "open_pool",
    "open_producer",
    "open_reader",
    "open_stream_consumer",
    "watch_namespace",
    "watch_topic",
]
