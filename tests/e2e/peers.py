"""Clients of a server process that send whatever a test wants, bytes included."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from protocol.client import requests
from protocol.framing import encode
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.e2e.vela_process import VelaServer
from tests.gateway.served import Client, connect_frame
from tests.support.ports import HOST

Update = api.CommandScalableTopicUpdate

# A topic that tests watch only to see that the server serves.
WITNESS = "topic://public/default/witness"


@asynccontextmanager
async def dialled(server: VelaServer, *, receive_buffer: int | None = None) -> AsyncIterator[Client]:
    """A connection that has not said anything yet."""
    with trio.socket.socket() as sock:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        await sock.connect((HOST, server.port))
        yield Client(sock)


@asynccontextmanager
async def greeted(server: VelaServer, *, receive_buffer: int | None = None) -> AsyncIterator[Client]:
    """A connection that has shaken hands."""
    async with dialled(server, receive_buffer=receive_buffer) as client:
        await client.send(connect_frame())
        assert (await client.receive(within=30)).type == BaseCommand.CONNECTED
        yield client


def full(topic: str) -> str:
    return f"topic://public/default/{topic}"


def watch(session_id: int, topic: str, *, create: bool = True) -> bytes:
    return encode(requests.open_topic_watch(session_id, topic, create))


def close_watch(session_id: int) -> bytes:
    return encode(requests.close_topic_watch(session_id))


async def next_update(client: Client, within: float = 30) -> Update:
    """The next command, which must be a push."""
    command = await client.receive(within)
    assert command.type == BaseCommand.SCALABLE_TOPIC_UPDATE, command
    return command.scalableTopicUpdate


async def until_epoch(client: Client, epoch: int, within: float = 30) -> Update:
    """Read pushes, none of which may be an error, until one has this epoch."""
    with trio.fail_after(within):
        while True:
            update = await next_update(client, within)
            assert not update.HasField("error"), update
            if update.dag.epoch == epoch:
                return update


async def assert_serving(server: VelaServer) -> None:
    """A newcomer is greeted, gets a DAG, and the admin API answers."""
    async with greeted(server) as client:
        await client.send(watch(1, WITNESS))
        assert (await next_update(client)).dag.segments
    assert server.request("GET", "/readyz").status_code == 200


def frame(command: bytes) -> bytes:
    """A well-formed frame around any bytes."""
    return (len(command) + 4).to_bytes(4) + len(command).to_bytes(4) + command
