"""A consumer's registration at the controller of its topic, which tells it the segments that are its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from protocol.client import requests
from protocol.client.addresses import ServiceAddress
from protocol.client.attaching import Attached
from protocol.client.attachments import Kind
from protocol.client.connection import ClientConnection
from protocol.client.errors import BadServiceUrl, RequestTimedOut, ServerMisbehaved, ServerRefused, SubscriptionDeleted
from protocol.client.pool import ConnectionPool
from protocol.errors import ProtocolError
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from protocol.client.requests import ConsumerType


class Registration(Attached):
    """Registers again wherever the controller is, always under the same name: that is who the consumer is.

    Every assignment is told whole, the newest last. A server that closes it has deleted the subscription, or the topic
    with it: it does not register again then, since that would make the subscription anew.
    """

    kind = Kind.REGISTRATION

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        subscription: str,
        name: str,
        on_assignment: Callable[[api.ScalableConsumerAssignment], None],
        on_end: Callable[[ProtocolError], None],
        *,
        consumer_type: ConsumerType = api.STREAM,
        create_if_missing: bool = True,
    ) -> None:
        super().__init__(pool, topic)
        self.name = name
        self._subscription = subscription
        self._on_assignment = on_assignment
        self._on_end = on_end
        self._consumer_type = consumer_type
        self._create = create_if_missing
        self._epoch = 0  # of the layout that the last assignment belongs to
        self._was_updated = False  # since it was asked to be registered
        self._is_deleted = False

    def receive(self, command: BaseCommand, body: bytes) -> None:
        if command.type == BaseCommand.CLOSE_CONSUMER:
            self._is_deleted = True
            self._dismiss()
            return
        assignment = command.scalableTopicAssignmentUpdate.assignment
        # The same epoch is no reason to ignore it: consumers come and go without a change of the layout.
        if not self._was_updated or assignment.layout_epoch >= self._epoch:
            self._was_updated = True
            self._apply(assignment)

    async def _find(self) -> ClientConnection:
        """Where the layout of the topic says that its controller is; any server will do where it does not say."""
        connection = await self._pool.connection_for(self.topic)
        watch = await connection.open_watch(self.topic, create_if_missing=self._create and not self._is_deleted)
        try:
            with trio.fail_after(self._pool.timeout):
                update = await watch.next()
        except trio.TooSlowError:
            raise RequestTimedOut(f"{connection.address} did not tell the layout of {self.topic}.") from None
        finally:
            watch.abandon()
        if update.HasField("error"):
            raise ServerRefused(update.error, update.message)
        if self._is_deleted:
            raise SubscriptionDeleted(
                f"Subscription {self._subscription} of {self.topic} was deleted, and its consumers with it: open a new"
                " consumer to begin it anew."
            )
        if not update.dag.controller_broker_url:
            return await self._pool.service()
        try:
            controller = ServiceAddress.parse(update.dag.controller_broker_url)
        except BadServiceUrl as error:
            raise ServerMisbehaved(f"The controller of {self.topic} cannot be reached. {error}") from error
        return await self._pool.connection_to(controller)

    async def _attach(self, connection: ClientConnection, number: int) -> None:
        self._was_updated = False
        reply = await connection.request(
            lambda request_id: requests.register_consumer(
                request_id, self.topic, self._subscription, self.name, number, self._consumer_type
            ),
            BaseCommand.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE,
            on_answer=self._answered,
        )
        response = reply.scalableTopicSubscribeResponse
        if response.HasField("error"):
            raise ServerRefused(response.error, response.message)

    def _answered(self, reply: BaseCommand) -> None:
        response = reply.scalableTopicSubscribeResponse
        # An update that came before the answer is of a later decision.
        if not response.HasField("error") and not self._was_updated:
            self._apply(response.assignment)

    def _apply(self, assignment: api.ScalableConsumerAssignment) -> None:
        self._epoch = assignment.layout_epoch
        self._on_assignment(assignment)

    def _close_command(self, request_id: int, number: int) -> BaseCommand:
        return requests.unregister_consumer(request_id, number)

    def _attached(self, connection: ClientConnection) -> None:
        pass

    def _detached(self) -> None:
        pass

    def _ended(self, error: ProtocolError) -> None:
        self._on_end(error)
