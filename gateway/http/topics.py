"""Scalable topics over HTTP: list, create, read, delete, split and merge, and their properties."""

from __future__ import annotations

from typing import Final

import msgspec
from litestar import Controller, MediaType, Response, delete, get, post, put
from litestar.params import FromPath

from controller.leader import TopicLeader
from gateway.http.documentation import (
    ETAG,
    IF_MATCH,
    INTEGER,
    STRING_MAP,
    STRINGS,
    SWITCH,
    answer,
    described,
    leader_refusals,
    query,
    refusals,
)
from gateway.http.parameters import (
    AnyRequest,
    expected_version,
    json_object,
    property_filters,
    switch,
    whole_number,
)
from gateway.http.path_names import NAMESPACE, OF_NAMESPACE, OF_TOPIC, TOPIC, NamespaceInPath, TopicInPath
from gateway.http.ports import AdminPorts, Ports
from gateway.http.refusals import BadRequest, InUse
from gateway.http.schemas import ScalableTopicMetadata
from layout import records
from layout.errors import InvalidRecord, LayoutError
from metadata.errors import TopicMissing
from metadata.records import StoredTopic
from metadata.store import TopicStore
from metadata.subscriptions import TopicState
from protocol.names import TOPIC as SCHEME
from protocol.names import NamespaceName, TopicName

# Between two slices everybody else on the loop gets a turn.
SLICE: Final = 100

PROPERTIES: Final = f"{TOPIC}/properties"


class _Properties(msgspec.Struct):
    """The part of a record that is asked for here; reading the rest would cost ten times as much."""

    properties: dict[str, str] | None = None


_properties_of = msgspec.json.Decoder(_Properties)


_properties_body: msgspec.json.Decoder[dict[str, str] | None] = msgspec.json.Decoder(dict[str, str] | None)


class TopicRoutes(Controller):
    path = "/admin/v2/scalable"
    tags = ("scalable topics",)
    dependencies = OF_TOPIC

    @get(
        NAMESPACE,
        summary="List the topics of a namespace",
        dependencies=OF_NAMESPACE,
        responses=refusals(412),
        operation_class=described(
            parameters=[query("property", STRINGS, "key=value; only topics that have all of them.")]
        ),
    )
    async def list_topics(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> list[str]:
        """The full names, sorted; a namespace that does not exist has none."""
        filters = property_filters(request)
        found = await ports.store.list_topics(name)
        if filters:
            found = await _with_properties(ports.store, name, found, filters)
        return [f"{SCHEME}://{name}/{local}" for local in found]

    @put(
        TOPIC,
        status_code=204,
        summary="Create a topic",
        responses=refusals(404, 409, 412, 507),
        response_headers=[ETAG],
        operation_class=described(
            parameters=[query("numInitialSegments", INTEGER, "How many equal segments it starts with.")],
            body=STRING_MAP,
        ),
    )
    async def create_topic(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> Response[None]:
        count = whole_number(request, "numInitialSegments", default=1)
        properties = await json_object(request, _properties_body)
        return done(await ports.transitions.create(name, count, properties))

    @get(
        TOPIC,
        summary="Read a topic's record",
        responses=refusals(404, 412) | {200: answer(ScalableTopicMetadata, "The record; ETag is its version.")},
    )
    async def read_topic(self, ports: Ports, name: TopicInPath) -> Response[bytes]:
        """As it is stored, so that fields of other writers come through."""
        stored = await stored_topic(ports, name)
        return Response(stored.value, media_type=MediaType.JSON, headers={"etag": stored.version.etag})

    @delete(
        TOPIC,
        status_code=204,
        summary="Delete a topic",
        responses=refusals(404, 409, 412),
        operation_class=described(
            parameters=[query("force", SWITCH, "Delete it although clients are connected."), IF_MATCH]
        ),
    )
    async def delete_topic(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> None:
        """With its subscriptions. Its segments' storage is deleted soon after."""
        if_match = expected_version(request)
        if not switch(request, "force"):
            await _check_unused(ports, name)
        await ports.transitions.delete(name, if_match=if_match)
        ports.garbage.collect_soon()

    @get(
        PROPERTIES,
        summary="Read a topic's properties",
        responses=refusals(404, 412) | {200: answer(dict[str, str], "All of them; ETag is the version of the topic.")},
    )
    async def read_properties(self, ports: Ports, name: TopicInPath) -> Response[dict[str, str]]:
        stored = await stored_topic(ports, name)
        return Response(_properties(stored), headers={"etag": stored.version.etag})

    @put(
        PROPERTIES,
        status_code=204,
        summary="Replace a topic's properties",
        responses=refusals(404, 409, 412, 507),
        response_headers=[ETAG],
        operation_class=described(parameters=[IF_MATCH], body=STRING_MAP),
    )
    async def replace_properties(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> Response[None]:
        """The body is the whole map; the segments and the epoch stay."""
        if (await request.body()).strip() in (b"", b"null"):
            # Elsewhere that stands for no properties; here it would remove all of them by an oversight.
            raise BadRequest("The body is missing: send all properties as one JSON object, {} to remove them.")
        properties = await json_object(request, _properties_body)
        return done(await ports.transitions.update_properties(name, properties, if_match=expected_version(request)))

    @post(
        f"{TOPIC}/split/{{segment_id:int}}",
        status_code=204,
        summary="Split a segment in two",
        responses=leader_refusals(404, 409, 412),
        response_headers=[ETAG],
        operation_class=described(parameters=[IF_MATCH]),
    )
    async def split_segment(
        self, ports: Ports, request: AnyRequest, name: TopicInPath, segment_id: FromPath[int]
    ) -> Response[None]:
        if_match = expected_version(request)

        async def split(leader: TopicLeader) -> StoredTopic:
            return await ports.transitions.split(name, segment_id, if_match, fence=leader.leader.fence)

        return done(await ports.leaders.as_leader(name, split))

    @post(
        f"{TOPIC}/merge/{{first:int}}/{{second:int}}",
        status_code=204,
        summary="Merge two adjacent segments",
        responses=leader_refusals(404, 409, 412),
        response_headers=[ETAG],
        operation_class=described(parameters=[IF_MATCH]),
    )
    async def merge_segments(
        self, ports: Ports, request: AnyRequest, name: TopicInPath, first: FromPath[int], second: FromPath[int]
    ) -> Response[None]:
        if_match = expected_version(request)

        async def merge(leader: TopicLeader) -> StoredTopic:
            return await ports.transitions.merge(name, first, second, if_match, fence=leader.leader.fence)

        return done(await ports.leaders.as_leader(name, merge))

    @post(
        f"{TOPIC}/migrate",
        status_code=204,
        summary="Make a classic topic scalable",
        responses=refusals(404, 409, 412, 507),
        response_headers=[ETAG],
        operation_class=described(
            parameters=[query("force", SWITCH, "Migrate it although clients are connected that cannot follow.")]
        ),
    )
    async def migrate_topic(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> Response[None]:
        """Its logs become sealed segments, and new ones take what comes. One that was interrupted is finished."""
        if "/" in name.local:
            raise TopicMissing(f"Topic does not exist: {name}. Classic topics have no slash in their names.")
        classic = TopicName.classic(name.tenant, name.namespace, name.local)
        stored = await ports.migrations.migrate(classic, force=switch(request, "force"))
        ports.leaders.sweep()
        return done(stored)


async def connected(ports: AdminPorts, state: TopicState) -> set[str]:
    """The sessions of the living nodes that hold connections of a topic's consumers."""
    return {session for session in holders(state) if await ports.peers.is_alive(session)}


def holders(state: TopicState) -> set[str]:
    """The sessions of the nodes that hold connections of a topic's consumers, or did until they died."""
    attachments = (c.attachment for s in state.subscriptions.values() for c in s.consumers.values())
    return {attachment.node for attachment in attachments if attachment.node}


async def topic_state(ports: AdminPorts, name: TopicName) -> TopicState:
    """A topic with its subscriptions, as the store has it now."""
    state = await ports.registrations.state(ports.store.commands, name)
    if state is None:
        raise TopicMissing(f"Scalable topic not found: {name}. Check its name, or create it.")
    return state


async def _check_unused(ports: AdminPorts, name: TopicName) -> None:
    state = await topic_state(ports, name)
    alive = await connected(ports, state)
    used = [
        subscription.name
        for subscription in state.subscriptions.values()
        if any(consumer.attachment.node in alive for consumer in subscription.consumers.values())
    ]
    if used:
        others = f" and {len(used) - 1} more" if len(used) > 1 else ""
        raise InUse(
            f"{name} has connected consumers, of subscription {used[0]}{others}: let them leave first, or use force."
        )
    try:
        segments = tuple(records.decode_layout(state.topic.value).segments.values())
    except LayoutError:
        return  # nobody can use what nobody can read
    figures = await ports.segments.figures(name, state.topic.version.incarnation, segments, {})
    clients = sum(it.traffic.clients for it in figures.values())
    if clients:
        raise InUse(f"{clients} clients are connected to segments of {name}: let them leave first, or use force.")


async def stored_topic(ports: AdminPorts, name: TopicName) -> StoredTopic:
    stored = await ports.store.get(name)
    if stored is None:
        raise TopicMissing(f"Scalable topic not found: {name}. Check its name, or create it.")
    return stored


def done(stored: StoredTopic) -> Response[None]:
    return Response(None, status_code=204, headers={"etag": stored.version.etag})


async def _with_properties(
    store: TopicStore, namespace: NamespaceName, found: list[str], filters: list[tuple[str, str]]
) -> list[str]:
    kept: list[str] = []
    for start in range(0, len(found), SLICE):
        topics = [
            TopicName.scalable(namespace.tenant, namespace.namespace, local) for local in found[start : start + SLICE]
        ]
        # A topic may go between the listing and the read.
        there = [stored for stored in await store.get_many(topics) if stored is not None]
        kept += [stored.name.local for stored in there if _matches(stored, filters)]
    return kept


def _matches(stored: StoredTopic, filters: list[tuple[str, str]]) -> bool:
    properties = _properties(stored)
    return all(properties.get(key) == value for key, value in filters)


def _properties(stored: StoredTopic) -> dict[str, str]:
    try:
        return _properties_of.decode(stored.value).properties or {}
    except msgspec.DecodeError as error:
        raise InvalidRecord(f"The record of {stored.name} is damaged ({error}): delete the topic.") from error
