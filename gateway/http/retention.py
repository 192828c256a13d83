"""How long sealed segments stay, over HTTP: of a namespace with Pulsar's path, and of a single topic."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from litestar import Controller, Response, delete, get, post, put

from controller.retention import NamespacePolicies, RetentionPolicy
from controller.transitions import ATTEMPTS, InvalidRetention, check_retention
from gateway.http.documentation import ETAG, IF_MATCH, RETENTION, answer, described, refusals
from gateway.http.parameters import AnyRequest, expected_version, json_struct
from gateway.http.path_names import NAMESPACE, OF_NAMESPACE, OF_TOPIC, TOPIC, NamespaceInPath, TopicInPath
from gateway.http.ports import AdminPorts, Ports
from gateway.http.refusals import BadRequest
from gateway.http.topics import done, stored_topic
from layout import records
from metadata.errors import NamespaceMissing, RecordDamaged, VersionConflict
from protocol.names import NamespaceName

FIELD: Final = "retention_policies"
UNLIMITED: Final = -1
_MAX_LONG: Final = 2**63 - 1

_retention_body = msgspec.json.Decoder(RetentionPolicy)
_policies = msgspec.json.Decoder(NamespacePolicies)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class NamespaceRetentionRoutes(Controller):
    path = f"/admin/v2/namespaces{NAMESPACE}/retention"
    tags = ("namespaces",)
    dependencies = OF_NAMESPACE

    @get(
        summary="Read how long sealed segments of a namespace's topics stay",
        responses=refusals(404, 412)
        | {200: answer(RetentionPolicy, "What is set."), 204: answer(type(None), "Nothing is set.")},
    )
    async def read_retention(self, ports: Ports, name: NamespaceInPath) -> Response[RetentionPolicy | None]:
        try:
            return _shown(_policies.decode(await _stored_policies(ports, name)).retention_policies)
        except msgspec.DecodeError as error:
            raise _damaged(name, error) from error

    @post(
        status_code=204,
        summary="Set how long sealed segments of a namespace's topics stay",
        responses=refusals(404, 409, 412),
        operation_class=described(body=RETENTION, body_required=True),
    )
    async def set_retention(self, ports: Ports, request: AnyRequest, name: NamespaceInPath) -> None:
        """-1 minutes: for ever. The size is kept and not acted on: segments are pruned whole, by age."""
        policy = await json_struct(request, _retention_body)
        check_policy(policy)
        await _write(ports, name, policy)

    @delete(
        status_code=204,
        summary="Let the server say how long sealed segments of a namespace's topics stay",
        responses=refusals(404, 409, 412),
    )
    async def remove_retention(self, ports: Ports, name: NamespaceInPath) -> None:
        await _write(ports, name, None)


class TopicRetentionRoutes(Controller):
    path = f"/admin/v2/scalable{TOPIC}/retention"
    tags = ("scalable topics",)
    dependencies = OF_TOPIC

    @get(
        summary="Read how long sealed segments of a topic stay",
        responses=refusals(404, 412)
        | {200: answer(RetentionPolicy, "What is set."), 204: answer(type(None), "Its namespace says.")},
    )
    async def read_retention(self, ports: Ports, name: TopicInPath) -> Response[RetentionPolicy | None]:
        """ETag is the version of the topic."""
        stored = await stored_topic(ports, name)
        minutes = records.decode(stored.value).retention_minutes
        shown = _shown(None if minutes is None else RetentionPolicy(minutes))
        shown.headers["etag"] = stored.version.etag
        return shown

    @put(
        status_code=204,
        summary="Set how long sealed segments of a topic stay",
        responses=refusals(404, 409, 412),
        response_headers=[ETAG],
        operation_class=described(parameters=[IF_MATCH], body=RETENTION, body_required=True),
    )
    async def set_retention(self, ports: Ports, request: AnyRequest, name: TopicInPath) -> Response[None]:
        """-1 minutes: for ever. There is no limit by size, which must be -1 where it is given."""
        policy = await json_struct(request, _retention_body)
        if policy.retentionSizeInMB != UNLIMITED:
            raise InvalidRetention("A topic has no limit by size: leave retentionSizeInMB out, or give -1.")
        minutes = policy.retentionTimeInMinutes
        return done(await ports.transitions.update_retention(name, minutes, expected_version(request)))

    @delete(
        status_code=204,
        summary="Let the namespace say how long sealed segments of a topic stay",
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
        check_policy(chosen)


def check_policy(policy: RetentionPolicy) -> None:
    check_retention(policy.retentionTimeInMinutes)
    if not UNLIMITED <= policy.retentionSizeInMB <= _MAX_LONG:
        raise InvalidRetention(
            f"retentionSizeInMB cannot be {policy.retentionSizeInMB}: give -1 for no limit, or more."
        )


def _shown(policy: RetentionPolicy | None) -> Response[RetentionPolicy | None]:
    return Response(policy, status_code=204 if policy is None else 200)


async def _write(ports: AdminPorts, name: NamespaceName, policy: RetentionPolicy | None) -> None:
    """Put it among the other policies, or take it out; those stay as they are, byte by byte."""
    for _ in range(ATTEMPTS):
        stored = await _stored_policies(ports, name)
        try:
            fields: dict[str, Any] = dict(_fields.decode(stored))
        except msgspec.DecodeError as error:
            raise _damaged(name, error) from error
        if policy is None:
            fields.pop(FIELD, None)
        else:
            fields[FIELD] = policy
        try:
            await ports.store.replace_namespace(name, stored, msgspec.json.encode(fields))
            return
        except VersionConflict:
            continue
    raise VersionConflict(f"The policies of {name} were changed by others {ATTEMPTS} times meanwhile: try again.")


async def _stored_policies(ports: AdminPorts, name: NamespaceName) -> bytes:
    policies = await ports.store.get_namespace(name)
    if policies is None:
        raise NamespaceMissing(f"Namespace does not exist: {name}. Check its name, or create it.")
    return policies


def _damaged(name: NamespaceName, error: Exception) -> RecordDamaged:
    return RecordDamaged(f"The stored policies of {name} cannot be read ({error}): set them anew.")
