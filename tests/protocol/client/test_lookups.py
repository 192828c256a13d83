"""Going where the lookup points."""

import pytest
import trio

from protocol import replies
from protocol.client import ServerMisbehaved, ServerRefused, connect_for_topic
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand
from tests.protocol.client.scripted_server import TOPIC, Peer, scripted_server


async def greet_and_wait(peer: Peer) -> None:
    await peer.greet()
    await peer.until_gone()


def redirect(request: api.CommandLookupTopic, url: str) -> BaseCommand:
    reply = replies.lookup_connect(request.request_id, url)
    reply.lookupTopicResponse.response = api.CommandLookupTopicResponse.Redirect
    return reply


async def test_a_server_that_points_to_itself_is_asked_on_one_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.point_to(peer.server.url)
        await peer.until_gone()

    async with scripted_server(script) as server, connect_for_topic(server.url, TOPIC) as connection:
        assert str(connection.address) == server.url
        assert server.accepted == 1


async def test_another_server_is_connected_to_and_the_first_one_left() -> None:
    left = trio.Event()
    async with scripted_server(greet_and_wait) as owner:

        async def script(peer: Peer) -> None:
            await peer.greet()
            await peer.point_to(owner.url)
            assert await peer.receive() is None
            left.set()

        async with scripted_server(script) as server, connect_for_topic(server.url, TOPIC) as connection:
            assert str(connection.address) == owner.url
            with trio.fail_after(30):
                await left.wait()


async def test_a_redirect_is_asked_again_with_the_authority_it_was_given() -> None:
    async def redirected(peer: Peer) -> None:
        await peer.greet()
        request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        assert request.authoritative
        await peer.send(replies.lookup_connect(request.request_id, peer.server.url))
        await peer.until_gone()

    async with scripted_server(redirected) as owner:

        async def script(peer: Peer) -> None:
            await peer.greet()
            request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
            assert not request.authoritative
            await peer.send(redirect(request, owner.url))
            await peer.until_gone()

        async with scripted_server(script) as server, connect_for_topic(server.url, TOPIC) as connection:
            assert str(connection.address) == owner.url


async def test_redirects_without_end_are_given_up() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        await peer.send(redirect(request, peer.server.url))
        await peer.until_gone()

    async with scripted_server(*[script] * 21) as server:
        with pytest.raises(ServerMisbehaved, match="redirects without end"):
            async with connect_for_topic(server.url, TOPIC):
                pass
        assert server.accepted == 21


async def test_a_proxied_owner_is_reached_through_the_service_url() -> None:
    async def asked(peer: Peer) -> None:
        await peer.greet()
        request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        reply = replies.lookup_connect(request.request_id, "pulsar://hidden:6650")
        reply.lookupTopicResponse.proxy_through_service_url = True
        await peer.send(reply)
        await peer.until_gone()

    async def proxied(peer: Peer) -> None:
        assert (await peer.greet()).proxy_to_broker_url == "hidden:6650"
        await peer.until_gone()

    async with scripted_server(asked, proxied) as server, connect_for_topic(server.url, TOPIC) as connection:
        assert str(connection.address) == server.url


async def test_a_refused_lookup_raises() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        reply = replies.refusal(await peer.expect(BaseCommand.LOOKUP), api.InvalidTopicName, "no name")
        assert reply is not None
        await peer.send(reply)
        await peer.until_gone()

    async with scripted_server(script) as server:
        with pytest.raises(ServerRefused, match="no name") as caught:
            async with connect_for_topic(server.url, TOPIC):
                pass
    assert caught.value.server_error == api.InvalidTopicName


@pytest.mark.parametrize("url", ["", "http://host:80", "nonsense"])
async def test_an_unusable_target_is_the_servers_fault(url: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.point_to(url)
        await peer.until_gone()

    async with scripted_server(script) as server:
        with pytest.raises(ServerMisbehaved, match="points to an address that cannot be used"):
            async with connect_for_topic(server.url, TOPIC):
                pass


async def test_a_target_with_tls_only_is_refused_with_the_reason() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        request = (await peer.expect(BaseCommand.LOOKUP)).lookupTopic
        await peer.send(replies.lookup_connect(request.request_id, None, "pulsar+ssl://host:6651"))
        await peer.until_gone()

    async with scripted_server(script) as server:
        with pytest.raises(ServerMisbehaved, match="knows no TLS"):
            async with connect_for_topic(server.url, TOPIC):
                pass


async def test_an_exception_of_the_body_comes_out_as_it_is() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.point_to(peer.server.url)
        await peer.until_gone()

    async with scripted_server(script) as server:
        with pytest.raises(KeyError, match="mine"):
            async with connect_for_topic(server.url, TOPIC):
                raise KeyError("mine")
