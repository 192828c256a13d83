"""What stays of what was consumed, over HTTP: of a namespace with Pulsar's path, and of a single topic."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Controller, Response, delete, get, post, put

from controller.retention import NamespacePolicies, RetentionPolicy
from controller.transitions import check_retention
from gateway.http.documentation import ETAG, IF_MATCH, RETENTION, answer, described, refusals
from gateway.http.namespace_policies import damaged, stored_policies, write_policy
from gateway.http.parameters import AnyRequest, expected_version, json_struct
from gateway.http.path_names import NAMESPACE, OF_NAMESPACE, OF_TOPIC, TOPIC, NamespaceInPath, TopicInPath
from gateway.http.ports import Ports
from gateway.http.refusals import BadRequest
from gateway.http.topics import done, stored_topic
from layout import records
from metadata.stored_values import UNREADABLE

FIELD: Final = "retention_policies"

_retention_body = msgspec.json.Decoder(RetentionPolicy)
_policies = msgspec.json.Decoder(NamespacePolicies)


class NamespaceRetentionRoutes(Controller):
    path = f"/admin/v2/namespaces{NAMESPACE}/retention"
    tags = ("namespaces",)
    dependencies = OF_NAMESPACE

    @get(
        summary="Read how long what was consumed stays in a namespace's topics",
        responses=refusals(404, 412)
        | {200: answer(RetentionPolicy, "What is set."), 204: answer(type(None), "Nothing is set.")},
    )
    async def read_retention(self, ports: Ports, name: NamespaceInPath) -> Response[RetentionPolicy | None]:
        try:
            return _shown(_policies.decode(await stored_policies(ports, name)).retention_policies)
        except UNREADABLE as error:
            raise damaged(name, error) from error

    @post(
        status_code=204,
        summary="Set how long what was consumed stays in a namespace's topics",
        responses=refusals(404, 409, 412),
        operation_class=described(body=RETENTION, body_required=True),
    )
    async def set_retention(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        """-1: no limit. What was consumed goes once it is past either; the size is that of one log or segment."""
        policy = await json_struct(request, _retention_body)
        check_retention(policy.retentionTimeInMinutes, policy.retentionSizeInMB)
        await write_policy(ports, name, FIELD, policy)

    @delete(
        status_code=204,
        summary="Let the server say how long what was consumed stays in a namespace's topics",
        responses=refusals(404, 409, 412),
    )
    async def remove_retention(self, ports: Ports, name: NamespaceInPath) -> None:
        await write_policy(ports, name, FIELD, None)


class TopicRetentionRoutes(Controller):
    path = f"/admin/v2/scalable{TOPIC}/retention"
    tags = ("scalable topics",)
    dependencies = OF_TOPIC

    @get(
        summary="Read how long what was consumed stays in a topic",
        responses=refusals(404, 412)
        | {200: answer(RetentionPolicy, "What is set."), 204: answer(type(None), "Its namespace says.")},
    )
    async def read_retention(self, ports: Ports, name: TopicInPath) -> Response[RetentionPolicy | None]:
        """ETag is the version of the topic."""
        stored = await stored_topic(ports, name)
        record = records.decode(stored.value)
        minutes = record.retention_minutes
        shown = _shown(None if minutes is None else RetentionPolicy(minutes, record.retention_megabytes))
        shown.headers["etag"] = stored.version.etag
        return shown

    @put(
        status_code=204,
        summary="Set how long what was consumed stays in a topic",
        responses=refusals(404, 409, 412),
        response_headers=[ETAG],
        operation_class=described(parameters=[IF_MATCH], body=RETENTION, body_required=True),
    )
    async def set_retention(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> Response[None]:
        """-1: no limit. What was consumed goes once it is past either; the size is that of one segment."""
        policy = await json_struct(request, _retention_body)
        return done(
            await ports.transitions.update_retention(
                name, policy.retentionTimeInMinutes, expected_version(request), megabytes=policy.retentionSizeInMB
            )
        )

    @delete(
        status_code=204,
        summary="Let the namespace say how long what was consumed stays in a topic",
        responses=refusals(404, 409, 412),
        response_headers=[ETAG],
        operation_class=described(parameters=[IF_MATCH]),
    )
    async def remove_retention(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> Response[None]:
        return done(await ports.transitions.update_retention(name, None, expected_version(request)))


def check_policies(policies: dict[str, Any]) -> None:
    """Refuse policies of a new namespace whose retention nobody could read later."""
    try:
        chosen = msgspec.convert(policies, NamespacePolicies).retention_policies
    except msgspec.ValidationError as error:
        raise BadRequest(f"The policies are not those of a namespace: {error}.") from None
    if chosen is not None:
        check_retention(chosen.retentionTimeInMinutes, chosen.retentionSizeInMB)


def _shown(policy: RetentionPolicy | None) -> Response[RetentionPolicy | None]:
    return Response(policy, status_code=204 if policy is None else 200)
