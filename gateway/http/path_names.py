"""The names in paths, put together and checked before a handler runs.

A handler asks for `name`, of the kind that its controller deals with, and for `subscription_name`.
"""

from __future__ import annotations

from typing import Final

from litestar.di import NamedDependency, Provide
from litestar.params import FromPath, SkipValidation

from gateway.http.parameters import checked_subscription
from gateway.http.refusals import InvalidParameter
from protocol.names import PERSISTENT, NamespaceName, SegmentName, TopicName
from protocol.names import SEGMENT as SEGMENT_SCHEME

NAMESPACE: Final = "/{tenant:str}/{namespace:str}"
TOPIC: Final = f"{NAMESPACE}/{{topic:str}}"
SEGMENT: Final = f"{TOPIC}/{{descriptor:str}}"

NamespaceInPath = NamedDependency[SkipValidation[NamespaceName]]
TopicInPath = NamedDependency[SkipValidation[TopicName]]
SegmentInPath = NamedDependency[SkipValidation[SegmentName]]
SubscriptionInPath = NamedDependency[SkipValidation[str]]


def _namespace(tenant: FromPath[str], namespace: FromPath[str]) -> NamespaceName:
    return NamespaceName(tenant, namespace)


def _topic(tenant: FromPath[str], namespace: FromPath[str], topic: FromPath[str]) -> TopicName:
    return TopicName.scalable(tenant, namespace, topic)


def _classic(tenant: FromPath[str], namespace: FromPath[str], topic: FromPath[str]) -> TopicName:
    return TopicName.classic(tenant, namespace, topic)


def _whole_topic(tenant: FromPath[str], namespace: FromPath[str], topic: FromPath[str]) -> TopicName:
    """For what the partitions of a classic topic share: their names lead to it."""
    name = TopicName.scalable(tenant, namespace, topic)
    if name.partition is None or "/" in name.local:
        return name
    return TopicName(PERSISTENT, tenant, namespace, topic).canonical


def _segment(
    tenant: FromPath[str], namespace: FromPath[str], topic: FromPath[str], descriptor: FromPath[str]
) -> SegmentName:
    if "/" in descriptor:
        # It would be read as a part of the topic's name.
        raise InvalidParameter(f"{descriptor[:80]!a} is not a segment: write it like 0000-ffff-0.")
    parent = TopicName.scalable(tenant, namespace, topic)
    return SegmentName.parse(f"{SEGMENT_SCHEME}://{parent.tenant}/{parent.namespace}/{parent.local}/{descriptor}")


def _subscription(subscription: FromPath[str]) -> str:
    return checked_subscription(subscription)


OF_NAMESPACE: Final = {"name": Provide(_namespace, sync_to_thread=False)}
OF_TOPIC: Final = {"name": Provide(_topic, sync_to_thread=False)}
OF_CLASSIC_TOPIC: Final = {"name": Provide(_classic, sync_to_thread=False)}
OF_WHOLE_TOPIC: Final = {"name": Provide(_whole_topic, sync_to_thread=False)}
OF_SEGMENT: Final = {"name": Provide(_segment, sync_to_thread=False)}
OF_SUBSCRIPTION: Final = {"subscription_name": Provide(_subscription, sync_to_thread=False)}
