"""Health, readiness, metrics, the OpenAPI document, and what is answered when something breaks."""

import logging

import pytest

from metadata.lanes import Timeouts
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess
from tests.support.waiting import eventually


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/openapi.json", "/admin/v2/clusters"])
async def test_head_answers_like_get_without_the_body(api: Api, path: str) -> None:
    got, head = await api.call("GET", path), await api.call("HEAD", path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    for name in ("content-type", "content-length"):
        assert head.headers[name] == got.headers[name]


async def test_readiness_gives_all_reasons(api: Api) -> None:
    assert (await api.call("GET", "/readyz")).json() == {"ready": True}
    api.reasons += ["the store is away", "the feed has a gap"]
    response = await api.call("GET", "/readyz")
    assert response.status_code == 503
    assert response.json() == {
        "ready": False,
        "reason": "the store is away; the feed has a gap",
        "reasons": ["the store is away", "the feed has a gap"],
    }
    assert (await api.call("GET", "/healthz")).status_code == 200
    api.reasons.clear()
    assert (await api.call("GET", "/readyz")).status_code == 200


async def test_metrics_are_prometheus_text(api: Api) -> None:
    response = await api.call("GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert response.text == "vela_up 1\n"


async def test_document_describes_every_path_and_its_refusals(api: Api) -> None:
    response = await api.call("GET", "/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert document["openapi"].startswith("3.1")
    topic = document["paths"]["/admin/v2/scalable/{tenant}/{namespace}/{topic}"]
    assert set(topic) == {"get", "put", "delete"}
    assert "/admin/v2/scalable/{tenant}/{namespace}/{topic}/merge/{first}/{second}" in document["paths"]
    parameters = {parameter["name"]: parameter for parameter in topic["put"]["parameters"]}
    assert parameters["numInitialSegments"]["schema"]["type"] == "integer"
    assert topic["put"]["requestBody"]["required"] is False
    for path, operations in document["paths"].items():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                if int(status) >= 400 and path != "/readyz":
                    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Reason"}
    segment = document["components"]["schemas"]["SegmentInfo"]["properties"]
    assert {"segmentId", "hashRange", "createdAtEpoch"} <= set(segment)


OPERATIONS = {
    "/admin/v2/scalable/{tenant}/{namespace}": {"get"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}": {"get", "put", "delete"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/properties": {"get", "put"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/retention": {"get", "put", "delete"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/stats": {"get"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/migrate": {"post"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/split/{segment_id}": {"post"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/merge/{first}/{second}": {"post"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions": {"get"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}": {"put", "delete"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/seek": {"post"},
    "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/skip-all": {"post"},
    "/admin/v2/persistent/{tenant}/{namespace}": {"get"},
    "/admin/v2/persistent/{tenant}/{namespace}/partitioned": {"get"},
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}": {"get", "put", "delete"},
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/stats": {"get"},
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitioned-stats": {"get"},
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions": {"get", "put", "post", "delete"},
    "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}": {"put", "delete"},
    "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/terminate": {"post"},
    "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/subscription/{subscription}": {"put", "delete"},
    "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/subscription/{subscription}/backlog": {"get"},
    "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/subscription/{subscription}/seek": {"post"},
    "/admin/v2/segments/{tenant}/{namespace}/{topic}/{descriptor}/subscription/{subscription}/skip-all": {"post"},
    "/admin/v2/namespaces/{tenant}": {"get"},
    "/admin/v2/namespaces/{tenant}/{namespace}": {"get", "put", "delete"},
    "/admin/v2/namespaces/{tenant}/{namespace}/retention": {"get", "post", "delete"},
    "/admin/v2/namespaces/{tenant}/{namespace}/schemaCompatibilityStrategy": {"get", "put"},
    "/admin/v2/namespaces/{tenant}/{namespace}/schemaAutoUpdateCompatibilityStrategy": {"get", "put"},
    "/admin/v2/namespaces/{tenant}/{namespace}/isAllowAutoUpdateSchema": {"get", "post"},
    "/admin/v2/namespaces/{tenant}/{namespace}/schemaValidationEnforced": {"get", "post"},
    "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema": {"get", "post", "delete"},
    "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema/{version}": {"get"},
    "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schemas": {"get"},
    "/admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility": {"post"},
    "/admin/v2/schemas/{tenant}/{namespace}/{topic}/version": {"post"},
    "/admin/v2/tenants": {"get"},
    "/admin/v2/tenants/{tenant}": {"get"},
    "/admin/v2/clusters": {"get"},
    "/admin/v2/nodes": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}
# Query parameters by the end of the path and the method.
QUERIES = {
    ("seek", "post"): {"timestamp"},
    ("{subscription}", "put"): {"type"},
    ("{subscription}", "delete"): {"force"},
    ("{topic}", "delete"): {"force"},
    ("partitions", "delete"): {"force"},
    ("migrate", "post"): {"force"},
    ("{descriptor}", "delete"): {"force"},
}


async def test_document_has_all_operations_with_their_words(api: Api) -> None:
    paths = (await api.call("GET", "/openapi.json")).json()["paths"]
    assert {path: set(operations) for path, operations in paths.items()} == OPERATIONS
    for path, operations in paths.items():
        for method, operation in operations.items():
            assert operation["summary"], (path, method)
            named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
            assert named == {step[1:-1] for step in path.split("/") if step.startswith("{")}
            asked = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"}
            if path.startswith("/admin/v2/scalable") or path.endswith("seek"):
                assert asked >= QUERIES.get((path.rpartition("/")[2], method), set())


async def test_document_says_what_the_leader_does_and_whose_rates_are_told(api: Api) -> None:
    document = (await api.call("GET", "/openapi.json")).json()
    led = {
        path.rpartition("{topic}")[2]
        for path, operations in document["paths"].items()
        for operation in operations.values()
        if "307" in operation["responses"]
    }
    assert led == {
        "/split/{segment_id}",
        "/merge/{first}/{second}",
        "/subscriptions/{subscription}/seek",
        "/subscriptions/{subscription}/skip-all",
        "/{descriptor}/subscription/{subscription}/seek",
        "/{descriptor}/subscription/{subscription}/skip-all",
    }
    stats = document["paths"]["/admin/v2/scalable/{tenant}/{namespace}/{topic}/stats"]["get"]
    assert "as their owners told it last" in stats["description"]
    schemas = document["components"]["schemas"]
    assert {"layout", "leader", "subscriptions", "producers", "msgRateIn"} <= set(
        schemas["ScalableTopicStats"]["properties"]
    )
    assert set(schemas["NodeInfo"]["properties"]) == {"session", "pulsarUrl", "httpUrl", "self", "leads"}
    timestamp = next(
        parameter
        for parameter in document["paths"][
            "/admin/v2/scalable/{tenant}/{namespace}/{topic}/subscriptions/{subscription}/seek"
        ]["post"]["parameters"]
        if parameter["name"] == "timestamp"
    )
    assert timestamp["required"] is True
    retention = document["paths"]["/admin/v2/namespaces/{tenant}/{namespace}/retention"]
    assert {"200", "204", "404"} <= set(retention["get"]["responses"])
    assert retention["post"]["requestBody"]["required"] is True


async def test_nothing_lies_below_the_document(api: Api) -> None:
    for path in ("/openapi.json/x", "/openapi.json/openapi.json", "/schema", "/schema/swagger"):
        response = await api.call("GET", path)
        assert response.status_code == 404
        reason_of(response)


async def test_unexpected_error_is_logged_and_answered_without_its_details(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_down(_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(api.store, "get", break_down)
    with caplog.at_level(logging.ERROR, logger="gateway.http.app"):
        response = await api.call("GET", f"{SCALABLE}/t")
    assert response.status_code == 500
    reason = reason_of(response)
    assert "secret" not in reason
    request_id = reason.rstrip(".").split()[-1]
    [record] = caplog.records
    assert request_id in record.getMessage()
    assert record.exc_info is not None
    assert "secret detail" in str(record.exc_info[1])


async def test_silent_store_is_503_until_it_answers_again(fresh_valkey: ValkeyProcess) -> None:
    timeouts = Timeouts(connect=0.3, silence=0.3, patience=0.6)
    async with running_api(fresh_valkey.url, timeouts=timeouts) as api:
        await api.call("PUT", f"{SCALABLE}/t")
        fresh_valkey.pause()
        for method, path in (("GET", "/t"), ("POST", "/t/split/0"), ("GET", "")):
            response = await api.call(method, SCALABLE + path)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            reason_of(response)
        assert (await api.call("GET", "/healthz")).status_code == 200
        fresh_valkey.resume()

        async def reads_again() -> bool:
            return (await api.call("GET", f"{SCALABLE}/t")).status_code == 200

        await eventually(reads_again)


async def test_full_store_refuses_creations_and_allows_the_rest(valkey: ValkeyProcess) -> None:
    async with running_api(valkey.url) as api:
        await api.call("PUT", f"{SCALABLE}/t")
        valkey.command("CONFIG", "SET", "maxmemory", "1")
        response = await api.call("PUT", f"{SCALABLE}/u")
        assert response.status_code == 507
        reason_of(response)
        assert (await api.call("POST", f"{SCALABLE}/t/split/0")).status_code == 204
        assert (await api.call("DELETE", f"{SCALABLE}/t")).status_code == 204
