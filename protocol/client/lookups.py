"""Finding the server that is responsible for a topic, as Pulsar's own clients do: by asking the one they know."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from protocol.client.addresses import ServiceAddress
from protocol.client.connection import CLIENT_VERSION, KEEP_ALIVE_INTERVAL, REQUEST_TIMEOUT, ClientConnection, connect
from protocol.client.errors import BadServiceUrl, ServerMisbehaved
from protocol.wire import pulsar_api_pb2 as api

# What Pulsar's own clients allow.
MAX_REDIRECTS = 20


@asynccontextmanager
async def connect_for_topic(
    service_url: str,
    topic: str,
    *,
    client_version: str = CLIENT_VERSION,
    timeout: float = REQUEST_TIMEOUT,
    keep_alive: float = KEEP_ALIVE_INTERVAL,
) -> AsyncIterator[ClientConnection]:
    """Connect to `service_url`, ask it for the topic and go where it points, as long as the body runs."""

    def connected(
        to: ServiceAddress, through: ServiceAddress | None = None
    ) -> AbstractAsyncContextManager[ClientConnection]:
        return connect(
            str(through or to),
            client_version=client_version,
            timeout=timeout,
            keep_alive=keep_alive,
            proxy_to_broker_url=to.authority if through else None,
        )

    service = address = ServiceAddress.parse(service_url)
    authoritative = False
    for _ in range(MAX_REDIRECTS + 1):
        async with connected(address) as connection:
            answer = await connection.lookup(topic, authoritative=authoritative)
            target = target_of(answer, address)
            is_final = answer.response == answer.Connect
            if is_final and target == address and not answer.proxy_through_service_url:
                yield connection
                return
        if is_final:
            async with connected(target, service if answer.proxy_through_service_url else None) as connection:
                yield connection
            return
        address, authoritative = target, answer.authoritative
    raise ServerMisbehaved(f"{service} answers with redirects without end: look at the addresses its nodes advertise.")


def target_of(answer: api.CommandLookupTopicResponse, asked: ServiceAddress) -> ServiceAddress:
    """Where an answer points to."""
    if not answer.brokerServiceUrl and answer.brokerServiceUrlTls:
        raise ServerMisbehaved(f"{asked} points to {answer.brokerServiceUrlTls}, but this client knows no TLS.")
    try:
        return ServiceAddress.parse(answer.brokerServiceUrl)
    except BadServiceUrl as error:
        raise ServerMisbehaved(f"{asked} points to an address that cannot be used. {error}") from error
