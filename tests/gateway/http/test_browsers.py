"""Pages of strangers cannot use the admin API through the browser of somebody who reaches it."""

from typing import Any, cast

import httpx
import pytest
from litestar.types import HTTPScope

from gateway.http.browsers import AdminHosts
from gateway.http.refusals import RequestError
from tests.gateway.http.running import SCALABLE, Api, raw_exchange, reason_of, running_api
from tests.support.processes import ValkeyProcess

HOSTS = AdminHosts.of(["vela.example", "10.0.0.5"])


def status(hosts: AdminHosts = HOSTS, method: str = "POST", body: bytes = b"", **headers: str) -> int:
    """What becomes of such a request; 200 stands for its way into the API."""
    sent = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    try:
        hosts.check(cast(HTTPScope, {"method": method, "headers": sent}), body)
    except RequestError as error:
        return error.http_status
    return 200


OUR_NAMES = ["localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:8080", "127.8.9.1", "[::1]:8080", "[::1]"]
OUR_NAMES += ["vela.example", "Vela.Example:443", "10.0.0.5", "192.0.2.77:8080", "[2001:db8::7]:8080"]


@pytest.mark.parametrize("host", OUR_NAMES)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_host_of_ours_or_an_address_is_let_in(host: str, method: str) -> None:
    assert status(method=method, host=host) == 200


STRANGE_NAMES = ["evil.example", "vela.example.evil.example", "notvela.example", "evil.example:8080", "", " ", "a@b"]
STRANGE_NAMES += ["localhost.evil.example", "127.0.0.1.evil.example", "[::1", "::1]", "localhost:80:80", "0x7f.1.", "ü"]


@pytest.mark.parametrize("host", STRANGE_NAMES)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_name_that_is_none_of_ours_is_misdirected(host: str, method: str) -> None:
    assert status(method=method, host=host) == 421


def test_request_without_a_host_is_let_in() -> None:
    assert status() == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "http://127.0.0.1:8080",
        "http://[::1]:1",
        "https://vela.example",
        "http://10.0.0.5:8080",
    ],
)
def test_page_of_ours_is_let_in(origin: str) -> None:
    assert status(host="localhost:8080", origin=origin) == 200


@pytest.mark.parametrize(
    "origin", ["null", "", "http://evil.example", "http://192.0.2.77", "https://vela.example.evil.example", "file://"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS"])
def test_page_of_a_stranger_is_refused(origin: str, method: str) -> None:
    assert status(method=method, host="localhost:8080", origin=origin) == 403


def test_page_from_the_same_address_is_let_in() -> None:
    assert status(host="192.0.2.77:8080", origin="http://192.0.2.77:8080") == 200


def test_change_from_another_site_is_refused_although_its_origin_is_not_told() -> None:
    assert status(host="localhost", sec_fetch_site="cross-site") == 403
    assert status(host="localhost", sec_fetch_site="same-origin") == 200
    # A link to an answer, which only its reader sees.
    assert status(method="GET", host="localhost", sec_fetch_site="cross-site") == 200


def test_star_lets_everybody_in() -> None:
    anybody = AdminHosts.of(["*"])
    assert status(anybody, host="evil.example", origin="null", sec_fetch_site="cross-site") == 200


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "Application/JSON; charset=utf-8", "application/vnd.partitioned-topic-metadata+json"],
)
def test_body_that_is_called_json_is_let_in(content_type: str) -> None:
    assert status(host="localhost", body=b"{}", content_type=content_type) == 200


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_body_of_another_type_is_refused_and_none_needs_none(content_type: str) -> None:
    for hosts in (HOSTS, AdminHosts.of(["*"])):
        assert status(hosts, host="localhost", body=b"{}", content_type=content_type) == 415
        assert status(hosts, host="localhost", body=b" \n", content_type=content_type) == 200
        assert status(hosts, host="localhost", content_type=content_type) == 200


async def refused(api: Api, method: str, path: str, headers: dict[str, str], **options: Any) -> tuple[int, str]:
    response = await api.client.request(method, path, headers=headers, **options)
    return response.status_code, reason_of(response)


async def test_rebound_name_changes_and_learns_nothing(api: Api) -> None:
    assert (await api.call("PUT", f"{SCALABLE}/t")).status_code == 204
    rebound = {"host": f"evil.example:{api.address.port}"}
    for method, path in [("POST", f"{SCALABLE}/t/split/0"), ("GET", SCALABLE), ("DELETE", f"{SCALABLE}/t")]:
        status_code, reason = await refused(api, method, path, rebound)
        assert (status_code, "--admin-hosts" in reason) == (421, True)
    assert (await api.call("GET", f"{SCALABLE}/t")).json()["epoch"] == 0


async def test_cross_site_post_changes_nothing(api: Api) -> None:
    assert (await api.call("PUT", f"{SCALABLE}/t")).status_code == 204
    status_code, reason = await refused(api, "POST", f"{SCALABLE}/t/split/0", {"origin": "https://evil.example"})
    assert (status_code, "--admin-hosts" in reason) == (403, True)
    assert (await api.call("GET", f"{SCALABLE}/t")).json()["epoch"] == 0


async def test_body_that_a_form_could_send_changes_nothing(api: Api) -> None:
    for headers in ({"content-type": "text/plain"}, {}):
        status_code, reason = await refused(api, "PUT", f"{SCALABLE}/t", headers, content=b'{"a":"b"}')
        assert (status_code, "application/json" in reason) == (415, True)
    assert (await api.call("GET", f"{SCALABLE}/t")).status_code == 404


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_probes_may_use_any_name(api: Api, path: str) -> None:
    response = await api.client.get(path, headers={"host": "pod-7.example", "origin": "http://board.example"})
    assert response.status_code == 200


async def test_authority_of_http_2_is_the_host(valkey: ValkeyProcess) -> None:
    async with (
        running_api(valkey.url) as api,
        httpx.AsyncClient(base_url=f"http://{api.address}", http1=False, http2=True, verify=False) as client,
    ):
        answers = [await client.get(SCALABLE, headers=headers) for headers in ({}, {"host": "evil.example"})]
        assert [(answer.http_version, answer.status_code) for answer in answers] == [("HTTP/2", 200), ("HTTP/2", 421)]


async def test_second_host_header_is_refused(api: Api) -> None:
    request = f"GET {SCALABLE} HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert (await raw_exchange(api.address, request.encode())).startswith(b"HTTP/1.1 400 ")
