"""A thin client of the admin API; whatever goes wrong is an AdminError with a sentence for the user."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx

from protocol.names import PERSISTENT, NamespaceName, SegmentName, TopicName

# Longer than the server is patient with its store (30 s for a request), so that its own sentence is what users see.
_TIMEOUT = 35.0
# A machine that is gone refuses nothing: packets to it are lost. Short, so that there is time for other tries.
_CONNECT_TIMEOUT = 3.0
# To the node that leads a topic; more than one only while the lead moves.
_MAX_REDIRECTS = 5
# Of an answer that says that the request was not even begun, because a dead node still leads the topic.
_NOT_DONE = "x-vela-not-done"
# Before another try, unless the server says otherwise, and the most that it may say.
_PAUSE = 0.5
_LONGEST_PAUSE = 10.0
# A proxy of the environment cannot reach the loopback of this machine, so it is not asked to.
_LOOPBACK = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}


class AdminError(Exception):
    """The admin API did not do it; `status` is its HTTP status, 0 when there was no answer."""

    def __init__(self, sentence: str, status: int = 0) -> None:
        super().__init__(sentence)
        self.status = status


class _LeaderAway(AdminError):
    """The node that leads the topic does not answer, so that nothing was done: worth another try after the pause."""

    def __init__(self, sentence: str, status: int = 0, *, pause: float = _PAUSE) -> None:
        super().__init__(sentence, status)
        self.pause = pause


class AdminClient:
    """Blocking calls, one per admin operation; a context manager that closes its connections."""

    def __init__(self, url: str, *, timeout: float | None = None) -> None:
        self.url = url.rstrip("/")
        self._timeout = _TIMEOUT if timeout is None else timeout
        if not self.url.startswith(("http://", "https://")):
            raise AdminError(f'The admin URL "{url}" cannot be used: give one like http://127.0.0.1:8080.')
        self._client = httpx.Client(
            timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, _CONNECT_TIMEOUT)),
            follow_redirects=True,
            max_redirects=_MAX_REDIRECTS,
            mounts=_LOOPBACK,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def list_topics(self, namespace: NamespaceName, properties: Mapping[str, str]) -> list[str]:
        filters = [("property", f"{key}={value}") for key, value in properties.items()]
        path = f"/admin/v2/scalable/{_part(namespace.tenant)}/{_part(namespace.namespace)}"
        return self._names(self._call("GET", path, params=filters))

    def list_classic(self, namespace: NamespaceName) -> list[str]:
        """The classic topics of a namespace, partitions instead of those that have them."""
        path = f"/admin/v2/persistent/{_part(namespace.tenant)}/{_part(namespace.namespace)}"
        return self._names(self._call("GET", path))

    def create_classic(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        self._call("PUT", _topic(topic), body=properties)

    def create_partitioned(self, topic: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
        body = {"partitions": partitions, "properties": dict(properties)}
        self._call("PUT", f"{_topic(topic)}/partitions", body=body)

    def set_partitions(self, topic: TopicName, partitions: int) -> None:
        self._call("POST", f"{_topic(topic)}/partitions", body=partitions)

    def delete_partitioned(self, topic: TopicName, *, force: bool = False) -> None:
        self._call("DELETE", f"{_topic(topic)}/partitions", params=_forced(force))

    def create_topic(self, topic: TopicName, segments: int, properties: Mapping[str, str]) -> None:
        self._call("PUT", _topic(topic), params=[("numInitialSegments", str(segments))], body=properties)

    def get_topic(self, topic: TopicName) -> bytes:
        """The topic's record, as Pulsar writes it in JSON."""
        return self._call("GET", _topic(topic))

    def delete_topic(self, topic: TopicName, *, force: bool = False) -> None:
        self._call("DELETE", _topic(topic), params=_forced(force))

    def set_properties(self, topic: TopicName, properties: Mapping[str, str]) -> None:
        """Replace all properties of the topic."""
        self._call("PUT", f"{_topic(topic)}/properties", body=properties)

    def create_segment(self, segment: SegmentName, subscriptions: Sequence[str] = ()) -> None:
        """See that a segment is there, with cursors of these subscriptions; nothing makes a segment that is not."""
        self._call("PUT", _segment(segment), body=list(subscriptions))

    def terminate_segment(self, segment: SegmentName) -> None:
        """See that a segment is sealed; an active one is refused."""
        self._call("POST", f"{_segment(segment)}/terminate")

    def delete_segment(self, segment: SegmentName, *, force: bool = False) -> None:
        """See that a segment is gone; one that belongs to a layout is refused."""
        self._call("DELETE", _segment(segment), params=_forced(force))

    def split(self, topic: TopicName, segment: int) -> None:
        self._call("POST", f"{_topic(topic)}/split/{segment}")

    def merge(self, topic: TopicName, first: int, second: int) -> None:
        self._call("POST", f"{_topic(topic)}/merge/{first}/{second}")

    def migrate(self, topic: TopicName, *, force: bool = False) -> None:
        """Make the classic topic of this name a scalable one."""
        self._call("POST", f"{_topic(topic)}/migrate", params=_forced(force))

    def topic_stats(self, topic: TopicName) -> bytes:
        """The layout with its owners, the leader, and the subscriptions with their consumers, in JSON."""
        return self._call("GET", f"{_topic(topic)}/stats")

    def get_retention(self, name: TopicName | NamespaceName) -> bytes:
        """How long it keeps sealed segments, in JSON; nothing where it does not say."""
        return self._call("GET", f"{_path(name)}/retention")

    def set_retention(self, name: TopicName | NamespaceName, minutes: int, megabytes: int | None = None) -> None:
        """Keep sealed segments this long and, where that is given, logs up to this size; -1 is no limit."""
        # As Pulsar has it: a namespace's policy is posted.
        method = "PUT" if isinstance(name, TopicName) else "POST"
        body = {"retentionTimeInMinutes": minutes}
        if megabytes is not None:
            body["retentionSizeInMB"] = megabytes
        self._call(method, f"{_path(name)}/retention", body=body)

    def clear_retention(self, name: TopicName | NamespaceName) -> None:
        """Leave it to the namespace of a topic, and to the server for a namespace."""
        self._call("DELETE", f"{_path(name)}/retention")

    def list_subscriptions(self, topic: TopicName) -> bytes:
        """The subscriptions by name, in JSON."""
        return self._call("GET", f"{_topic(topic)}/subscriptions")

    def create_subscription(self, topic: TopicName, name: str, kind: str | None = None) -> None:
        """Without a type its first consumer decides."""
        self._call("PUT", _subscription(topic, name), params=[("type", kind)] if kind is not None else [])

    def delete_subscription(self, topic: TopicName, name: str) -> None:
        """Delete a subscription, whoever is connected."""
        self._call("DELETE", _subscription(topic, name))

    def seek(self, topic: TopicName, subscription: str, timestamp_ms: int) -> None:
        """Let a subscription go on from this moment, forwards or backwards."""
        self._call("POST", f"{_subscription(topic, subscription)}/seek", params=[("timestamp", str(timestamp_ms))])

    def skip_all(self, topic: TopicName, subscription: str) -> None:
        """Let a subscription go on after everything that is there now."""
        self._call("POST", f"{_subscription(topic, subscription)}/skip-all")

    def get_schema(self, topic: TopicName, version: int | None) -> bytes:
        """A version of the schema, or the last one, in JSON."""
        return self._call("GET", _schemas(topic, "schema" if version is None else f"schema/{version}"))

    def list_schemas(self, topic: TopicName) -> bytes:
        """All versions of the schema, in JSON."""
        return self._call("GET", _schemas(topic, "schemas"))

    def upload_schema(self, topic: TopicName, payload: Mapping[str, object]) -> bytes:
        """The version that the topic has it as, in JSON."""
        return self._call("POST", _schemas(topic, "schema"), body=payload)

    def check_schema(self, topic: TopicName, payload: Mapping[str, object]) -> bytes:
        """Whether it would be taken, in JSON."""
        return self._call("POST", _schemas(topic, "compatibility"), body=payload)

    def delete_schema(self, topic: TopicName, *, force: bool = False) -> None:
        self._call("DELETE", _schemas(topic, "schema"), params=_forced(force))

    def list_tenants(self) -> bytes:
        """Their names, in JSON."""
        return self._call("GET", "/admin/v2/tenants")

    def list_namespaces(self, tenant: str) -> bytes:
        """The full names of those of a tenant, in JSON."""
        return self._call("GET", f"/admin/v2/namespaces/{_part(tenant)}")

    def create_namespace(self, namespace: NamespaceName) -> None:
        self._call("PUT", _namespace(namespace))

    def delete_namespace(self, namespace: NamespaceName, *, force: bool = False) -> None:
        self._call("DELETE", _namespace(namespace), params=_forced(force))

    def list_nodes(self) -> bytes:
        """The nodes that are alive, in JSON."""
        return self._call("GET", "/admin/v2/nodes")

    def check_ready(self) -> None:
        """Raises AdminError with the server's reason while it is not ready."""
        self._call("GET", "/readyz")

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Sequence[tuple[str, str]] = (),
        body: Mapping[str, object] | list[str] | int | None = None,
    ) -> bytes:
        json_body = dict(body) if isinstance(body, Mapping) else body
        give_up_at = time.monotonic() + self._timeout
        while True:
            try:
                return self._call_once(method, path, params, json_body)
            except _LeaderAway as error:
                # Another node leads the topic when the lease of a dead one is over; nothing was done meanwhile.
                if time.monotonic() + error.pause >= give_up_at:
                    raise
                time.sleep(error.pause)

    def _call_once(self, method: str, path: str, params: Sequence[tuple[str, str]], body: object) -> bytes:
        try:
            response = self._client.request(method, f"{self.url}{path}", params=list(params) or None, json=body)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            asked = _server(error.request.url)
            if asked != _server(httpx.URL(self.url)):
                raise _LeaderAway(
                    f"{self.url} says that the node at {asked} leads the topic, and that one does not answer: "
                    "try again when its lease is over, or look at --advertise-http there."
                ) from None
            raise AdminError(
                f"no Vela answers at {self.url}: start one with `make serve` or pass --admin-url"
            ) from None
        except httpx.TimeoutException as error:
            raise AdminError(
                f"{_server(error.request.url)} gave no answer within {self._timeout:g} s: look at its log, or run "
                "`vela doctor`. A change may have been made all the same: look before you try again."
            ) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError):
            raise AdminError(
                f'The admin URL "{self.url}" cannot be used: give one like http://127.0.0.1:8080.'
            ) from None
        except httpx.HTTPError as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise AdminError(f"The call to {self.url} failed ({reason}): is that the admin API of a Vela?") from None
        if response.is_success:
            return response.content
        sentence = _reason(response) or self._strange(response)
        if response.status_code == 503 and _NOT_DONE in response.headers:
            raise _LeaderAway(sentence, response.status_code, pause=_retry_after(response))
        raise AdminError(sentence, response.status_code)

    def _names(self, answer: bytes) -> list[str]:
        try:
            names = json.loads(answer)
        except ValueError:
            names = None
        if not isinstance(names, list):
            raise AdminError(f"{self.url} answered with something that is no list of topics: is it a Vela?")
        return [str(name) for name in names]

    def _strange(self, response: httpx.Response) -> str:
        return f"{self.url} answered {response.status_code} without a reason: is it the admin URL of a Vela server?"


def _topic(topic: TopicName) -> str:
    """Where a topic is, of either kind."""
    kind = "persistent" if topic.domain == PERSISTENT else "scalable"
    return f"/admin/v2/{kind}/{_parts(topic)}"


def _segment(segment: SegmentName) -> str:
    return f"/admin/v2/segments/{_parts(segment.parent)}/{segment.descriptor}"


def _schemas(topic: TopicName, what: str) -> str:
    return f"/admin/v2/schemas/{_parts(topic)}/{what}"


def _parts(topic: TopicName) -> str:
    return "/".join(_part(part) for part in (topic.tenant, topic.namespace, topic.local))


def _path(name: TopicName | NamespaceName) -> str:
    return _topic(name) if isinstance(name, TopicName) else _namespace(name)


def _subscription(topic: TopicName, name: str) -> str:
    return f"{_topic(topic)}/subscriptions/{_part(name)}"


def _namespace(namespace: NamespaceName) -> str:
    return f"/admin/v2/namespaces/{_part(namespace.tenant)}/{_part(namespace.namespace)}"


def _forced(force: bool) -> list[tuple[str, str]]:
    return [("force", "true")] if force else []


def _server(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _part(text: str) -> str:
    # `.` and `..` would be resolved away on the way, and the request would hit the parent.
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def _retry_after(response: httpx.Response) -> float:
    """The seconds that the server asks for, within reason; dates are for others."""
    try:
        return min(max(float(response.headers.get("retry-after", _PAUSE)), _PAUSE), _LONGEST_PAUSE)
    except ValueError:
        return _PAUSE


def _reason(response: httpx.Response) -> str | None:
    try:
        answer = json.loads(response.content)
    except ValueError:
        return None
    reason = answer.get("reason") if isinstance(answer, dict) else None
    return reason if isinstance(reason, str) else None
