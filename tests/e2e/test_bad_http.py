"""Requests that no client should send: each gets its status and its reason, and garbage does no harm."""

from __future__ import annotations

import json
import socket

import pytest

from tests.e2e.peers import assert_serving
from tests.e2e.vela_process import SCALABLE, VelaServer
from tests.gateway.http.running import reason_of
from tests.gateway.served import connect_frame
from tests.support.ports import HOST

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json"}
MAX_BODY = 64 * 1024

BAD_PATHS = {
    "blank-name": (412, f"{SCALABLE}/%20"),
    "null-in-name": (412, f"{SCALABLE}/a%00b"),
    "newline-in-name": (412, f"{SCALABLE}/a%0Ab"),
    "escape-in-name": (412, f"{SCALABLE}/%1B%5B31m"),
    "slash-at-the-end-of-name": (412, f"{SCALABLE}/a%2F"),
    "only-a-slash": (412, f"{SCALABLE}/%2F"),
    "empty-part-in-name": (412, f"{SCALABLE}/a%2F%2Fb"),
    "long-name": (412, f"{SCALABLE}/{'x' * 1025}"),
    "long-name-in-bytes": (412, f"{SCALABLE}/{'%C3%BC' * 513}"),
    "slash-in-tenant": (412, "/admin/v2/scalable/pub%2Flic/default/a"),
    "space-in-namespace": (412, "/admin/v2/scalable/public/def%20ault/a"),
    "dots-up-and-out": (412, "/admin/v2/scalable/public/%2E%2E%2F%2E%2E/a"),
    "long-tenant": (412, f"/admin/v2/scalable/{'t' * 256}/default/a"),
    "not-utf-8": (400, f"{SCALABLE}/%FF%FE"),
    "half-a-surrogate": (400, f"{SCALABLE}/%ED%A0%80"),
    "overlong-slash": (400, f"{SCALABLE}/%C0%AF"),
    "empty-tenant": (404, "/admin/v2/scalable//default/a"),
}


@pytest.mark.parametrize(("status", "path"), BAD_PATHS.values(), ids=BAD_PATHS)
def test_bad_name_in_a_path_is_refused_with_a_reason_whatever_is_asked_of_it(
    server: VelaServer, status: int, path: str
) -> None:
    before = server.request("GET", SCALABLE).json()
    answers = {method: server.request(method, path) for method in ("PUT", "GET", "DELETE")}
    answers["POST"] = server.request("POST", f"{path}/split/0")
    creating = answers.pop("PUT")
    assert (creating.status_code, bool(reason_of(creating))) == (status, True)
    for answer in answers.values():
        # A name that cannot be created may still be looked for.
        assert answer.status_code in {status, 404}
        assert len(reason_of(answer)) < 1_000
    assert server.request("GET", SCALABLE).json() == before


BAD_NUMBERS = {
    "split-of-text": (404, "POST", "/split/first"),
    "split-of-a-negative": (404, "POST", "/split/-1"),
    "split-of-nothing-there": (404, "POST", "/split/99"),
    "split-of-a-huge-number": (404, "POST", f"/split/{2**64}"),
    "split-of-digits-without-end": (404, "POST", f"/split/{'9' * 5_000}"),
    "split-of-a-fraction": (404, "POST", "/split/0.5"),
    "merge-with-itself": (412, "POST", "/merge/0/0"),
    "merge-of-one": (404, "POST", "/merge/0"),
    "merge-with-nothing-there": (404, "POST", "/merge/0/99"),
    "merge-of-strangers": (412, "POST", "/merge/0/2"),
    "no-segments": (412, "PUT", "-new?numInitialSegments=0"),
    "negative-segments": (412, "PUT", "-new?numInitialSegments=-1"),
    "many-segments": (412, "PUT", "-new?numInitialSegments=65537"),
    "segments-of-a-huge-number": (412, "PUT", f"-new?numInitialSegments={'9' * 5_000}"),
    "segments-in-words": (412, "PUT", "-new?numInitialSegments=two"),
    "segments-in-other-digits": (412, "PUT", "-new?numInitialSegments=%D9%A3"),
    "segments-twice": (412, "PUT", "-new?numInitialSegments=1&numInitialSegments=2"),
}


@pytest.mark.parametrize(("status", "method", "rest"), BAD_NUMBERS.values(), ids=BAD_NUMBERS)
def test_bad_number_is_refused_and_changes_nothing(
    server: VelaServer, topic: str, status: int, method: str, rest: str
) -> None:
    server.create(topic, segments=3)
    answer = server.request(method, f"{SCALABLE}/{topic}{rest}")
    assert answer.status_code == status, answer.text
    assert reason_of(answer)
    assert server.epoch(topic) == 0
    assert server.request("GET", f"{SCALABLE}/{topic}-new").status_code == 404


BAD_BODIES = {
    "half-an-object": (400, b'{"a": "b"'),
    "not-json": (400, b"a=b"),
    "not-utf-8": (400, b'{"a": "\xff"}'),
    "a-list": (400, b'["a"]'),
    "a-number": (400, b"42"),
    "number-as-value": (400, b'{"a": 1}'),
    "object-as-value": (400, b'{"a": {"b": "c"}}'),
    "null-as-value": (400, b'{"a": null}'),
    "deeply-nested": (400, b'{"a":' * 5_000),
    "empty-key": (412, b'{"": "b"}'),
    "long-value": (412, json.dumps({"a": "b" * 2_000}).encode()),
    "many-properties": (412, json.dumps({f"k{n}": "v" for n in range(100)}).encode()),
    "too-large": (413, b" " * (MAX_BODY + 1)),
    "much-too-large": (413, b" " * (5 * MAX_BODY)),
}


@pytest.mark.parametrize(("status", "body"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_bad_body_is_refused_and_creates_nothing(server: VelaServer, topic: str, status: int, body: bytes) -> None:
    answer = server.request("PUT", f"{SCALABLE}/{topic}", content=body)
    assert answer.status_code == status, answer.text
    assert reason_of(answer)
    assert server.request("GET", f"{SCALABLE}/{topic}").status_code == 404


STRANGE_REQUESTS = {
    "unknown-path": (404, "GET", "/admin/v2/nothing"),
    "root": (404, "GET", "/"),
    "other-version": (404, "GET", "/admin/v3/scalable/public/default"),
    "climbing-path": (404, "GET", "/admin/v2/scalable/%2E%2E/%2E%2E/%2E%2E/etc/passwd"),
    "post-on-a-list": (405, "POST", SCALABLE),
    "patch-on-a-topic": (405, "PATCH", f"{SCALABLE}/a"),
    "get-of-a-split": (405, "GET", f"{SCALABLE}/a/split/0"),
    "delete-of-health": (405, "DELETE", "/healthz"),
    "invented-method": (405, "BREW", f"{SCALABLE}/a"),
    "filter-without-value": (412, "GET", f"{SCALABLE}?property=team"),
    "filter-without-key": (412, "GET", f"{SCALABLE}?property==blue"),
    "query-that-is-not-utf-8": (400, "GET", f"{SCALABLE}?property=%FF=a"),
}


@pytest.mark.parametrize(("status", "method", "path"), STRANGE_REQUESTS.values(), ids=STRANGE_REQUESTS)
def test_request_that_has_no_place_is_refused_with_a_reason(
    server: VelaServer, status: int, method: str, path: str
) -> None:
    answer = server.request(method, path)
    assert (answer.status_code, bool(reason_of(answer))) == (status, True)


@pytest.mark.parametrize("etag", ['"', "nonsense", '"0.0"', 'W/"a.1"', '"' + "9" * 4_000 + '"', "\xff"])
def test_version_that_never_was_changes_nothing(server: VelaServer, topic: str, etag: str) -> None:
    server.create(topic)
    headers = {"if-match": etag.encode("latin-1")}
    assert server.request("POST", f"{SCALABLE}/{topic}/split/0", headers=headers).status_code == 412
    assert server.request("DELETE", f"{SCALABLE}/{topic}", headers=headers).status_code == 412
    assert server.epoch(topic) == 0


GARBAGE = {
    "pulsar-connect": connect_frame(),
    "tls-hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(512),
    "random-bytes": bytes(range(256)) * 8,
    "nulls": bytes(10_000),
    "line-without-end": b"GET /" + b"a" * 200_000,
    "headers-without-end": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 50_000,
    "no-host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "negative-length": b"PUT /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
    "two-lengths": b"PUT /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length-and-chunks": b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nzz",
    "bad-chunk": b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
    "space-in-target": b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
    "bytes-in-target": b"GET /admin/v2/scalable/public/default/\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    "other-protocol": b"GET / GOPHER/1.0\r\n\r\n",
    "http2-and-then-garbage": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(range(256)),
    "upgrade-to-web-socket": (
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    ),
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_on_the_http_port_is_answered_with_a_refusal_or_cut(server: VelaServer, data: bytes) -> None:
    answer = b""
    with socket.create_connection((HOST, server.http_port), timeout=20) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while part := sock.recv(65_536):
                answer += part
        except OSError:
            pass  # cut while it was still talking
    if answer.startswith(b"HTTP/1.1"):
        assert answer[9:10] == b"4", answer
    await assert_serving(server)
