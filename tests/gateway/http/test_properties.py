"""A topic's properties over real HTTP and a real store."""

import pytest

from controller.transitions import TopicLimits
from protocol.names import TopicName
from tests.gateway.http.running import SCALABLE, Api, reason_of, running_api
from tests.support.processes import ValkeyProcess

PROPERTIES = f"{SCALABLE}/t/properties"


async def create(api: Api, **properties: str) -> str:
    """The version of a new topic."""
    created = await api.call("PUT", f"{SCALABLE}/t", json=properties, params={"numInitialSegments": 2})
    assert created.status_code == 204
    return str(created.headers["etag"])


async def test_properties_are_replaced_as_a_whole_and_the_segments_stay(api: Api) -> None:
    version = await create(api, team="blue", env="prod")
    await api.call("POST", f"{SCALABLE}/t/split/0")
    before = (await api.call("GET", f"{SCALABLE}/t")).json()
    replaced = await api.call("PUT", PROPERTIES, json={"team": "red", "größe": "ü=1"})
    assert (replaced.status_code, replaced.content) == (204, b"")
    after = await api.call("GET", f"{SCALABLE}/t")
    assert after.headers["etag"] == replaced.headers["etag"] != version
    assert after.json() == before | {"properties": {"team": "red", "größe": "ü=1"}}


async def test_properties_are_read_alone_with_the_version_of_the_topic(api: Api) -> None:
    version = await create(api, team="blue")
    response = await api.call("GET", PROPERTIES)
    assert (response.status_code, response.json()) == (200, {"team": "blue"})
    assert response.headers["etag"] == version
    assert response.headers["content-type"] == "application/json"
    await api.call("PUT", PROPERTIES, json={})
    assert (await api.call("GET", PROPERTIES)).json() == {}


async def test_listing_follows_a_change_of_properties(api: Api) -> None:
    await create(api, team="blue")

    async def listed(text: str) -> list[str]:
        found: list[str] = (await api.call("GET", SCALABLE, params={"property": text})).json()
        return found

    assert await listed("team=blue") == ["topic://public/default/t"]
    await api.call("PUT", PROPERTIES, json={"team": "red"})
    assert await listed("team=blue") == []
    assert await listed("team=red") == ["topic://public/default/t"]


async def test_stale_etag_fails_the_precondition(api: Api) -> None:
    first = await create(api, n="0")
    second = await api.call("PUT", PROPERTIES, json={"n": "1"}, headers={"if-match": first})
    assert second.status_code == 204
    stale = await api.call("PUT", PROPERTIES, json={"n": "2"}, headers={"if-match": first})
    assert stale.status_code == 412
    assert second.headers["etag"] in reason_of(stale)
    assert (await api.call("GET", PROPERTIES)).json() == {"n": "1"}
    read = (await api.call("GET", PROPERTIES)).headers["etag"]
    assert (await api.call("PUT", PROPERTIES, json={"n": "3"}, headers={"if-match": read})).status_code == 204
    assert (await api.call("PUT", PROPERTIES, json={"n": "4"}, headers={"if-match": "*"})).status_code == 204


async def test_properties_of_a_missing_topic_are_not_found(api: Api) -> None:
    for response in (await api.call("GET", PROPERTIES), await api.call("PUT", PROPERTIES, json={"a": "b"})):
        assert response.status_code == 404
        assert "topic://public/default/t" in reason_of(response)
    assert (await api.call("GET", SCALABLE)).json() == []


@pytest.mark.parametrize("body", [b"", b" \n", b"null", b"{", b"[]", b'"x"', b'{"a":1}', b'{"a":null}', b"\xff"])
async def test_body_that_is_no_map_of_strings_changes_nothing(api: Api, body: bytes) -> None:
    await create(api, keep="me")
    response = await api.call("PUT", PROPERTIES, content=body)
    assert response.status_code == 400
    assert "JSON" in reason_of(response)
    assert (await api.call("GET", PROPERTIES)).json() == {"keep": "me"}


async def test_properties_past_their_bounds_change_nothing(valkey: ValkeyProcess) -> None:
    async with running_api(valkey.url, limits=TopicLimits(max_properties=1, max_property_size=8)) as api:
        await create(api, a="1")
        for properties in ({"a": "1", "b": "2"}, {"a": "x" * 8}, {"": "x"}):
            response = await api.call("PUT", PROPERTIES, json=properties)
            assert response.status_code == 412
            reason_of(response)
        assert (await api.call("GET", PROPERTIES)).json() == {"a": "1"}


@pytest.mark.parametrize(("name", "path"), [("a/properties", "a%2Fproperties"), ("properties", "properties")])
async def test_topic_whose_name_is_like_the_path_is_told_apart(api: Api, name: str, path: str) -> None:
    await api.transitions.create(TopicName.scalable("public", "default", name), 1, {"x": "y"})
    assert (await api.call("GET", f"{SCALABLE}/{path}")).json()["epoch"] == 0
    assert (await api.call("PUT", f"{SCALABLE}/{path}/properties", json={"x": "z"})).status_code == 204
    assert (await api.call("GET", f"{SCALABLE}/{path}/properties")).json() == {"x": "z"}


async def test_damaged_record_is_an_error_that_says_which(api: Api) -> None:
    await api.store.create(TopicName.scalable("public", "default", "t"), b"{not json", [])
    for response in (await api.call("GET", PROPERTIES), await api.call("PUT", PROPERTIES, json={})):
        assert response.status_code == 500
        reason_of(response)


async def test_the_document_describes_both_operations(api: Api) -> None:
    paths = (await api.call("GET", "/openapi.json")).json()["paths"]
    operations = paths["/admin/v2/scalable/{tenant}/{namespace}/{topic}/properties"]
    assert {"get", "put"} <= set(operations)
    assert "If-Match" in {parameter["name"] for parameter in operations["put"]["parameters"]}
    assert {"204", "404", "412"} <= set(operations["put"]["responses"])
