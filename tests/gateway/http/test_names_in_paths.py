"""Names in paths: what is percent-encoded is part of a name, once, and nothing else is."""

from urllib.parse import quote

import pytest

from protocol.names import TopicName
from tests.gateway.http.running import SCALABLE, Api, reason_of

ODD_NAMES = [
    "a/b",
    "a/stats",
    "a/split/0",
    "a%2Fb",
    "a%252Fb",
    "%",
    "%zz",
    "grüße",
    "日本語",
    "😀",
    "a b",
    "a+b",
    "a;b=c",
    "a?b",
    "a#b",
    "a&b",
    "a:b@c",
    "...",
    "a..b",
    "stats",
    "split",
    "{topic}",
    "x" * 1024,
]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_name_survives_every_operation(api: Api, name: str) -> None:
    # Every character is escaped, dots too: clients fold dot steps away before they send them.
    path = f"{SCALABLE}/{quote(name, safe='').replace('.', '%2E')}"
    assert (await api.call("PUT", path)).status_code == 204
    assert await api.store.get(TopicName.scalable("public", "default", name)) is not None
    assert (await api.call("GET", path)).status_code == 200
    assert (await api.call("GET", SCALABLE)).json() == [f"topic://public/default/{name}"]
    assert (await api.call("POST", f"{path}/split/0")).status_code == 204
    assert (await api.call("POST", f"{path}/merge/1/2")).status_code == 204
    assert (await api.call("DELETE", path)).status_code == 204
    assert await api.store.get(TopicName.scalable("public", "default", name)) is None


async def test_same_name_twice_in_a_row_is_decoded_once_each_time(api: Api) -> None:
    """The router caches what it finds in a path; decoding it in place would decode it again the next time."""
    await api.call("PUT", f"{SCALABLE}/a%252Fb")
    for _ in range(3):
        assert (await api.call("GET", f"{SCALABLE}/a%252Fb")).status_code == 200
    assert (await api.call("GET", SCALABLE)).json() == ["topic://public/default/a%2Fb"]


async def test_topic_named_like_a_subresource_is_not_that_subresource(api: Api) -> None:
    await api.call("PUT", f"{SCALABLE}/a")
    await api.call("PUT", f"{SCALABLE}/a%2Fsplit%2F0")
    assert (await api.call("POST", f"{SCALABLE}/a%2Fsplit%2F0/split/0")).status_code == 204
    assert (await api.call("GET", f"{SCALABLE}/a")).json()["epoch"] == 0
    assert (await api.call("POST", f"{SCALABLE}/a%2Fsplit%2F0")).status_code == 405
    assert (await api.call("GET", f"{SCALABLE}/a/stats")).json()["layout"]["epoch"] == 0
    assert (await api.call("GET", f"{SCALABLE}/a%2Fstats")).status_code == 404


@pytest.mark.parametrize("part", ["%FF", "a%C3", "%ED%A0%80", "ok%80/split/0"])
async def test_name_that_is_not_utf_8_is_a_bad_request(api: Api, part: str) -> None:
    response = await api.call("POST", f"{SCALABLE}/{part}")
    assert response.status_code == 400
    assert "UTF-8" in reason_of(response)


async def test_query_that_is_not_utf_8_is_a_bad_request(api: Api) -> None:
    response = await api.call("GET", f"{SCALABLE}?property=a=%FF")
    assert response.status_code == 400
    assert "UTF-8" in reason_of(response)


@pytest.mark.parametrize(
    "part",
    [
        "%2E",
        "%2E%2E",
        "%2E%2E%2Fx",
        "a-partition-3",
        "%00",
        "a%0Ab",
        "%20",
        "%20a",
        "a%20",
        "a%2F%2Fb",
        "%2F",
        "%2Fa",
        "x" * 1025,
        "%F0%9F%98%80" * 300,
    ],
)
async def test_name_that_may_not_be_created_is_refused(api: Api, part: str) -> None:
    response = await api.call("PUT", f"{SCALABLE}/{part}")
    assert response.status_code == 412
    assert len(reason_of(response)) < 500
    assert await api.store.list_namespaces() == []


@pytest.mark.parametrize("path", ["a%20b/default", "public/a%2Fb", "%C3%BC/x", "x/%00", f"{'x' * 256}/y"])
@pytest.mark.parametrize("base", ["/admin/v2/scalable/{}/t", "/admin/v2/namespaces/{}"])
async def test_bad_tenant_or_namespace_is_refused(api: Api, base: str, path: str) -> None:
    response = await api.call("PUT", base.format(path))
    assert response.status_code == 412
    reason_of(response)


@pytest.mark.parametrize(
    "path", [f"{SCALABLE}//t", "/admin/v2/scalable/public//t", "/admin//v2/tenants", f"{SCALABLE}/t//split/0"]
)
async def test_path_with_an_empty_step_is_unknown(api: Api, path: str) -> None:
    await api.call("PUT", f"{SCALABLE}/t")
    for method in ("GET", "PUT", "DELETE", "POST"):
        response = await api.call(method, path)
        assert response.status_code == 404
        reason_of(response)
    assert (await api.call("GET", f"{SCALABLE}/t")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/admin", "/admin/v2/scalable", "/nope", "/admin/v3/tenants", "/healthz/x"])
async def test_unknown_path_is_not_found(api: Api, path: str) -> None:
    response = await api.call("GET", path)
    assert response.status_code == 404
    assert "/openapi.json" in reason_of(response)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", f"{SCALABLE}/t", "DELETE, GET, HEAD, PUT"),
        ("OPTIONS", f"{SCALABLE}/t", "DELETE, GET, HEAD, PUT"),
        ("POST", SCALABLE, "GET, HEAD"),
        ("GET", f"{SCALABLE}/t/split/0", "POST"),
        ("DELETE", "/healthz", "GET, HEAD"),
        ("BREW", "/admin/v2/tenants", "GET, HEAD"),
    ],
)
async def test_wrong_method_names_the_right_ones(api: Api, method: str, path: str, allowed: str) -> None:
    response = await api.call(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    assert allowed in reason_of(response)
