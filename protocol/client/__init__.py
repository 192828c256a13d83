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

Consume all topics of a namespace that have certain properties, while topics are created, deleted and given other
properties. Acknowledging cumulatively covers everything that was taken before, of whichever topics::

    async with open_pool("pulsar://127.0.0.1:6650") as pool:
        async with open_namespace_stream_consumer(
            pool, "public/default", "billing", properties={"team": "blue"}, on_topic=print
        ) as consumer:
            async for message in consumer:
                print(message.scalable_topic, message.key, message.value)
                await consumer.ack_cumulative(message)

Topics that match later begin with all their messages where they lack the subscription (`joining_position`). When a
topic stops matching, what nobody has taken of it is left to others, and what was taken can be acknowledged for ten
seconds. One that cannot be consumed is tried again without holding up the others: `failures` has the reasons.
`open_namespace_consumer` shares all segments with the other consumers of the subscription instead. `NamespaceLimits`
bounds the topics and the messages that wait, which all topics share.

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
    SubscriptionDeleted,
    TooManyTopics,
    UnreadableMessage,
    UpdatesNotTaken,
)
from protocol.client.lookups import connect_for_topic
from protocol.client.matching_topics import TopicEvent, TopicFailed, TopicJoined, TopicLeft
from protocol.client.message_ids import MessageId
from protocol.client.namespace_consumer import (
    NamespaceConsumer,
    NamespaceStreamConsumer,
    open_namespace_consumer,
    open_namespace_stream_consumer,
)
from protocol.client.namespace_topics import NamespaceLimits
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
    "NamespaceConsumer",
    "NamespaceEvent",
    "NamespaceLimits",
    "NamespaceStreamConsumer",
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
    "SubscriptionDeleted",
    "TooManyTopics",
    "TopicConsumer",
    "TopicEvent",
    "TopicFailed",
    "TopicJoined",
    "TopicLeft",
    "TopicProducer",
    "TopicWatch",
    "UnreadableMessage",
    "UpdatesNotTaken",
    "Watch",
    "WatchState",
    "connect",
    "connect_for_topic",
    "open_consumer",
    "open_namespace_consumer",
    "open_namespace_stream_consumer",
    "open_pool",
    "open_producer",
    "open_reader",
    "open_stream_consumer",
    "watch_namespace",
    "watch_topic",
]
