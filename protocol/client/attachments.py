"""Producers, consumers and registrations on one connection: told apart by a number that the client chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from protocol.errors import ProtocolError
from protocol.wire.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from protocol.replies import CommandType


class Kind(Enum):
    """What can be attached to a connection."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    REGISTRATION = "registration"  # of a consumer at the controller of its topic


class Attachment(Protocol):
    def receive(self, command: BaseCommand, body: bytes) -> None:
        """A command for this attachment arrived; must not wait. A ProtocolError ends the connection."""

    def end(self, reason: ProtocolError) -> None:
        """The connection ended: nothing more will come."""


_RECIPIENTS: Mapping[CommandType, tuple[Kind, Callable[[BaseCommand], int]]] = MappingProxyType(
    {
        BaseCommand.SEND_RECEIPT: (Kind.PRODUCER, lambda command: command.send_receipt.producer_id),
        BaseCommand.SEND_ERROR: (Kind.PRODUCER, lambda command: command.send_error.producer_id),
        BaseCommand.CLOSE_PRODUCER: (Kind.PRODUCER, lambda command: command.close_producer.producer_id),
        BaseCommand.MESSAGE: (Kind.CONSUMER, lambda command: command.message.consumer_id),
        BaseCommand.CLOSE_CONSUMER: (Kind.CONSUMER, lambda command: command.close_consumer.consumer_id),
        BaseCommand.REACHED_END_OF_TOPIC: (Kind.CONSUMER, lambda command: command.reachedEndOfTopic.consumer_id),
        BaseCommand.ACTIVE_CONSUMER_CHANGE: (
            Kind.CONSUMER,
            lambda command: command.active_consumer_change.consumer_id,
        ),
        BaseCommand.SCALABLE_TOPIC_ASSIGNMENT_UPDATE: (
            Kind.REGISTRATION,
            lambda command: command.scalableTopicAssignmentUpdate.consumer_id,
        ),
    }
)
ADDRESSED = frozenset(_RECIPIENTS)


class AttachmentTable:
    """What is attached to one connection. A number is used again by its last holder only, so that what comes late finds
    nobody else.
    """

    __slots__ = ("_attached", "_numbers")

    def __init__(self) -> None:
        self._attached: dict[tuple[Kind, int], Attachment] = {}
        self._numbers = count(1)

    def add(self, kind: Kind, attachment: Attachment, former: int | None = None) -> int:
        """With the number that it had before on this connection, or a new one."""
        number = next(self._numbers) if former is None else former
        self._attached[kind, number] = attachment
        return number

    def remove(self, kind: Kind, number: int) -> None:
        """Without effect for one that is not there."""
        self._attached.pop((kind, number), None)

    def receive(self, command: BaseCommand, body: bytes) -> None:
        """Pass a command on; one for nobody came too late and does no harm."""
        kind, number_of = _RECIPIENTS[command.type]
        number = number_of(command)
        attachment = self._attached.get((kind, number))
        if attachment is None and command.type == BaseCommand.CLOSE_CONSUMER:
            # Numbers are given once for all kinds, so it cannot mean somebody else.
            attachment = self._attached.get((Kind.REGISTRATION, number))
        if attachment is not None:
            attachment.receive(command, body)

    def end(self, reason: ProtocolError) -> None:
        attached, self._attached = self._attached, {}
        for attachment in attached.values():
            attachment.end(reason)
