"""The checks of `vela doctor` that look at a running server from outside, and at the machine it runs on."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

from gateway.admin_client import AdminClient, AdminError
from gateway.cli.findings import Finding, fail, ok, warn
from gateway.cli.options import BadArgument, check_service_url
from gateway.quantities import HostPort
from gateway.settings import unknown_variables

# Files that a server needs besides those of its clients: store, HTTP, logs, and some air.
SPARE_FILES = 256
_LOW_SPACE = 1 << 30
_START_ONE = "start one with `make serve` if there should be one, or name it with"


def check_open_files(max_connections: int) -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        return warn(
            "open files",
            f"the limit here is {soft}, too low for max_connections = {max_connections}",
            f"raise it with `ulimit -n {wanted}` before `vela serve` (hard limit: {hard}), or lower max_connections",
        )
    return ok("open files", f"the limit here is {soft}")


def check_variables(environ: Mapping[str, str]) -> Finding:
    strange = [f"{name} (did you mean {meant}?)" if meant else name for name, meant in unknown_variables(environ)]
    if strange:
        return warn("environment", f"no setting has this name: {', '.join(strange)}", "unset or correct it")
    return ok("environment", "every VELA_… variable is a setting")


def check_data_dir(data_dir: Path) -> Finding:
    place = data_dir.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return fail("data directory", f"{data_dir} cannot be written", "choose another one with --data-dir")
    free = shutil.disk_usage(place).free
    if free < _LOW_SPACE:
        return warn("data directory", f"only {free >> 20} MB are free for {data_dir}", "make room on that disk")
    return ok("data directory", f"{data_dir} can be written, {free >> 30} GB free")


def check_readiness(admin_url: str) -> Finding:
    try:
        with AdminClient(admin_url) as client:
            client.check_ready()
    except AdminError as error:
        if error.status:
            return fail("readiness", f"{admin_url} is not ready: {error}", "look at the server's log")
        return warn("readiness", str(error).partition(": ")[0], f"{_START_ONE} --admin-url")
    return ok("readiness", f"{admin_url} is ready")


def check_binary_port(service_url: str, patience: float) -> Finding:
    try:
        address = HostPort.parse(check_service_url(service_url).removeprefix("pulsar://"))
    except BadArgument as error:
        return fail("binary port", str(error), "correct --service-url")
    try:
        with socket.create_connection((address.host, address.port), timeout=patience) as peer:
            version = _shake_hands(peer)
    except ConnectionRefusedError:
        return warn("binary port", f"no Vela answers at {service_url}", f"{_START_ONE} --service-url")
    except OSError as error:
        text = error.strerror or str(error) or "no answer"
        return fail("binary port", f"{service_url} does not answer: {text}", "look at the server's log")
    if version is None:
        return fail(
            "binary port",
            f"{service_url} does not speak Pulsar's protocol",
            "correct --service-url (usually port 6650)",
        )
    return ok("binary port", f"{service_url} answers as {version}")


def _shake_hands(peer: socket.socket) -> str | None:
    """The server's name for itself, None if it is no Pulsar server."""
    from protocol.errors import ProtocolError
    from protocol.framing import Frame, FrameDecoder, encode
    from protocol.wire import pulsar_api_pb2 as api

    hello = api.CommandConnect(client_version="vela-doctor", protocol_version=21)
    peer.sendall(encode(api.BaseCommand(type=api.BaseCommand.CONNECT, connect=hello)))
    decoder = FrameDecoder()
    while received := peer.recv(65_536):
        try:
            frames = decoder.receive(received)
        except ProtocolError:
            return None
        for frame in frames:
            if isinstance(frame, Frame) and frame.command.HasField("connected"):
                return frame.command.connected.server_version
    return None
