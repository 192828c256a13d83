"""What the store says about namespaces, read and filtered without the code under test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metadata import keys
from protocol.names import NamespaceName, TopicName
from tests.support.processes import ValkeyProcess

# As they are sent: in any order, keys may repeat.
Filters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Stored:
    """A topic as far as namespace watches care; `value` is its whole record."""

    incarnation: str
    properties: Mapping[str, str]
    value: bytes


Truth = Mapping[str, Stored]  # by topic:// name


def read_truth(server: ValkeyProcess, namespaces: Iterable[NamespaceName]) -> Truth:
    """All topics of these namespaces: what the indexes name, with their records, which must agree."""
    indexed: dict[TopicName, str] = {}
    for namespace in namespaces:
        asking = server.client().pipeline(transaction=False)
        for bucket in range(keys.BUCKETS):
            asking.hgetall(f"/index/{{b{bucket:03d}}}/{namespace.tenant}/{namespace.namespace}")
        for index in asking.execute():
            for name, incarnation in index.items():
                topic = TopicName("topic", namespace.tenant, namespace.namespace, name.decode())
                indexed[topic] = incarnation.decode()
    asking = server.client().pipeline(transaction=False)
    for topic in indexed:
        asking.hmget(keys.record_key(keys.path_of(topic)), "incarnation", "value")
    truth: dict[str, Stored] = {}
    for (topic, incarnation), (recorded, value) in zip(indexed.items(), asking.execute(), strict=True):
        assert recorded is not None, f"the index names {topic}, which has no record"
        assert recorded.decode() == incarnation, f"the index names another {topic} than its record"
        truth[str(topic)] = Stored(incarnation, json.loads(value)["properties"], value)
    return truth


def matches(filters: Filters, properties: Mapping[str, str]) -> bool:
    last = {key: position for position, (key, _) in enumerate(filters)}
    return all(properties.get(filters[position][0]) == filters[position][1] for position in last.values())


def selected(truth: Truth, namespace: NamespaceName, filters: Filters) -> frozenset[str]:
    """The names that a watch of this namespace with these filters is to hold."""
    prefix = f"topic://{namespace}/"
    return frozenset(
        name for name, stored in truth.items() if name.startswith(prefix) and matches(filters, stored.properties)
    )
