"""Runs the `vela` command inside the test process, and a small real HTTP server for it to talk to."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from unittest.mock import patch

import typer.main

from gateway.cli.main import main


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    out: str
    err: str


_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# A process does these once. Certificates are not looked at, because nothing here is asked over TLS.
_built_once = cache(typer.main.get_command)
_NO_CERTIFICATES = {"SSL_CERT_DIR": os.devnull}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def vela(*arguments: str, **variables: str) -> Outcome:
    """What `vela ARGUMENTS` does, in an environment without settings of the developer's."""
    return _run(io.StringIO(), arguments, variables)


def vela_in_terminal(columns: int, *arguments: str, **variables: str) -> Outcome:
    """The same in a terminal of so many columns; without the styles, which take no room."""
    outcome = _run(_Terminal(), arguments, {"COLUMNS": str(columns), "TERM": "xterm"} | variables)
    return replace(outcome, out=_STYLE.sub("", outcome.out))


def _run(out: io.StringIO, arguments: Sequence[str], variables: Mapping[str, str]) -> Outcome:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("VELA_")}
    environ |= _NO_CERTIFICATES | {"COLUMNS": "200", "TERM": "dumb", "NO_COLOR": "1"} | dict(variables)
    err = io.StringIO()
    with (
        patch.object(sys, "argv", ["vela", *arguments]),
        patch.object(typer.main, "get_command", _built_once),
        patch.dict(os.environ, environ, clear=True),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
    return Outcome(code, out.getvalue(), err.getvalue())


def assert_one_sentence(outcome: Outcome) -> None:
    """How a command fails: exit code 1, and one line that says why."""
    assert outcome.code == 1
    assert outcome.out == ""
    assert outcome.err.startswith("vela: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert "defect" not in outcome.err


@dataclass(slots=True)
class AdminStub:
    """Answers by (method, raw path without the query); what it was asked is in `requests` as (method, target, body)."""

    url: str = ""
    answers: dict[tuple[str, str], tuple[int, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)  # by raw path

    def answer(self, method: str, path: str, status: int, content: Any = None) -> None:
        body = content if isinstance(content, bytes) else b"" if content is None else json.dumps(content).encode()
        self.answers[method, path] = status, body


@contextmanager
def admin_stub() -> Iterator[AdminStub]:
    stub = AdminStub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline(65_537)
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            stub.requests.append((self.command, self.path, body))
            path = self.path.partition("?")[0]
            status, content = stub.answers.get((self.command, path), (404, b'{"reason": "not stubbed"}'))
            self.send_response(status)
            if path in stub.redirects:
                self.send_header("location", stub.redirects[path])
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def closed_port() -> int:
    """A port that was free a moment ago: whoever connects to it is refused."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
