"""`vela doctor`: what stands in the way of a server that runs well, and what to do about each thing."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.findings import Finding, Status, fail, warn
from gateway.cli.options import (
    DEFAULT_ADMIN_URL,
    DEFAULT_SERVICE_URL,
    AdminUrl,
    ServiceUrl,
    with_settings,
)
from gateway.settings import Settings

_COLOURS = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


@with_settings(("store", "data_dir"))
def doctor(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per check and line.")] = False,
    admin_url: AdminUrl = DEFAULT_ADMIN_URL,
    service_url: ServiceUrl = DEFAULT_SERVICE_URL,
) -> None:
    """Check the store, the running server and this machine, and say what to do about each problem.

    It looks into the store named by --store, VELA_STORE or the settings
    file; without one, into the embedded store of the running server. It
    only reads, but for one probe key that it removes again. The exit code
    is 1 if a check failed; warnings alone leave it 0.
    """
    if not as_json:
        print(scope(settings, admin_url, service_url))
    worst = Status.OK
    for finding in examine(settings, admin_url, service_url, os.environ):
        _print(finding, as_json)
        worst = Status.FAIL if Status.FAIL in (worst, finding.status) else worst
    if worst is Status.FAIL:
        raise typer.Exit(1)


def scope(settings: Settings, admin_url: str, service_url: str) -> str:
    """One sentence on what is looked at."""
    server = f"the server at {service_url} and {admin_url}"
    if settings.uses_embedded_store:
        return f"No store is named, so this is about {server}, with its embedded store in {settings.data_dir}."
    return f"This is about the store from {settings.origin('store')} and {server}."


def examine(settings: Settings, admin_url: str, service_url: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """All findings, in the order in which a server would meet the problems."""
    from gateway.cli import server_checks

    patience = settings.store_connect_timeout
    yield server_checks.check_variables(environ)
    yield server_checks.check_open_files(settings.max_connections)
    yield from _examine_store(settings)
    yield server_checks.check_readiness(admin_url)
    yield server_checks.check_binary_port(service_url, patience)


def _examine_store(settings: Settings) -> Iterator[Finding]:
    from gateway.cli.store_checks import check_store
    from metadata.errors import BadStoreUrl
    from metadata.urls import StoreUrl

    if settings.uses_embedded_store:
        yield from _examine_embedded_store(settings)
        return
    try:
        url = StoreUrl.parse(settings.store)
    except BadStoreUrl as error:
        yield fail("store URL", str(error), f"correct the {settings.origin('store')}")
    else:
        yield from check_store(url, settings.store_connect_timeout)


def _examine_embedded_store(settings: Settings) -> Iterator[Finding]:
    from gateway.cli.server_checks import check_data_dir
    from gateway.cli.store_checks import check_store
    from metadata.embedded import SOCKET_NAME, EmbeddedStoreError, server_binary
    from metadata.urls import Endpoint, Kind, StoreUrl

    try:
        server_binary()
    except EmbeddedStoreError as error:
        yield fail("embedded store", str(error), "name a Redis or Valkey with --store")
        return
    yield check_data_dir(settings.data_dir)
    socket_path = _shortest(settings.data_dir / SOCKET_NAME)
    if _answers(socket_path):
        url = StoreUrl(Kind.SINGLE, (Endpoint(socket_path, 0),))
        yield from check_store(url, settings.store_connect_timeout)
    else:
        yield warn(
            "embedded store",
            f"it is not running on {settings.data_dir}, so only its directory could be checked",
            "run the doctor again while `vela serve` runs, or name the server's directory with --data-dir",
        )


def _shortest(path: Path) -> str:
    # A socket's path may have about 100 bytes; from here it is often shorter than from the root.
    return min(os.path.relpath(path), str(path.absolute()), key=len)


def _answers(socket_path: str) -> bool:
    # The file alone means little: a server that was killed leaves it behind.
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(socket_path)
        except OSError:
            return False
    return True


def _print(finding: Finding, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(finding)), flush=True)
        return
    from rich.console import Console
    from rich.text import Text

    text = Text(f"{finding.status:<4}  ", _COLOURS[finding.status])
    text.append(f"{finding.check}: ", "bold").append(finding.seen, "default")
    if finding.advice:
        text.append(f"\n      → {finding.advice}", "default")
    Console(soft_wrap=True, no_color=None if sys.stdout.isatty() else True).print(text, highlight=False)
