"""A producer on one segment, one partition or one plain topic: pipelined SENDs, and their receipts in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from protocol.client import requests
from protocol.client.attaching import Attached
from protocol.client.attachments import Kind
from protocol.client.connection import ClientConnection
from protocol.client.errors import MessageTooLarge, ServerMisbehaved, ServerRefused
from protocol.client.message_ids import MessageId
from protocol.client.outgoing import Envelope, send_frame
from protocol.client.pool import ConnectionPool
from protocol.client.sending import Sending
from protocol.errors import ProtocolError
from protocol.framing import FRAME_PADDING
from protocol.wire import pulsar_api_pb2 as api
from protocol.wire.pulsar_api_pb2 import BaseCommand

if TYPE_CHECKING:
    from protocol.client.requests import AccessMode


class SendingOwner(Protocol):
    """Who hands messages to a segment's producer."""

    def returned(self, producer: SegmentProducer, sendings: list[Sending], reason: ProtocolError) -> None:
        """The producer is over, and these messages in this order are not stored, or not known to be."""

    def idle(self, producer: SegmentProducer) -> None:
        """The outcome of everything that was handed over is known."""


class SegmentProducer(Attached):
    """Sends what it is handed in order, and again after it has lost its place, with the same sequence ids.

    The name that it had first it keeps, so that the server can tell what it has already.
    """

    kind = Kind.PRODUCER

    def __init__(
        self,
        pool: ConnectionPool,
        topic: str,
        owner: SendingOwner,
        *,
        name: str | None = None,
        access_mode: AccessMode = api.Shared,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(pool, topic)
        self.name = name
        self.resent = 0  # messages that were written once more because a place was lost
        self.unsure = 0  # messages that were returned although they may be stored
        self._owner = owner
        self._is_own_name = name is not None
        self._access_mode = access_mode
        self._properties = dict(properties or {})
        self._topic_epoch: int | None = None
        self._next_sequence: int | None = None
        self._pending: deque[Sending] = deque()

    @property
    def pending(self) -> int:
        return len(self._pending)

    def submit(self, sending: Sending) -> None:
        """Take over a message; its outcome is told to itself, or its owner gets it back."""
        assert self.failure is None, "who hands over messages knows that this is over"
        self._pending.append(sending)
        if self._connection is not None:
            self._write(self._connection, sending)

    def drop_settled(self) -> None:
        """Forget messages that nobody waits for any more.

        A place on which the server was silent for so long is given up as well: what it still says about them could not
        be told apart from an error.
        """
        if any(sending.is_settled for sending in self._pending):
            if self._connection is None:
                self._forget_settled()
            else:
                self._lose(ServerMisbehaved(f"{self._connection.address} did not confirm what it was sent."))

    def receive(self, command: BaseCommand, body: bytes) -> None:
        match command.type:
            case BaseCommand.SEND_RECEIPT:
                self._confirm(command.send_receipt)
            case BaseCommand.SEND_ERROR:
                self._refuse(command.send_error)
            case BaseCommand.CLOSE_PRODUCER:
                self._dismiss()

    async def _attach(self, connection: ClientConnection, number: int) -> None:
        reply = await connection.request(
            lambda request_id: requests.producer(
                request_id,
                self.topic,
                number,
                name=self.name,
                is_own_name=self._is_own_name,
                epoch=self.attaches,
                access_mode=self._access_mode,
                topic_epoch=self._topic_epoch,
                properties=self._properties,
            ),
            BaseCommand.PRODUCER_SUCCESS,
            # Who waits for exclusive access is told so, and once more when it is his turn.
            is_final=lambda answer: answer.producer_success.producer_ready,
        )
        success = reply.producer_success
        self.name = success.producer_name
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        if self._next_sequence is None:
            self._next_sequence = success.last_sequence_id + 1

    def _close_command(self, request_id: int, number: int) -> BaseCommand:
        return requests.close_producer(request_id, number)

    def _attached(self, connection: ClientConnection) -> None:
        self._forget_settled()
        for sending in list(self._pending):
            self.resent += sending.was_written
            self._write(connection, sending)

    def _detached(self) -> None:
        self._forget_settled()

    def _ended(self, error: ProtocolError) -> None:
        pending, self._pending = self._pending, deque()
        if not self.is_attached:
            self.unsure += sum(sending.was_written and not sending.is_settled for sending in pending)
        self._owner.returned(self, [sending for sending in pending if not sending.is_settled], error)

    def _write(self, connection: ClientConnection, sending: Sending) -> None:
        assert self.name is not None, "the server gives a name to whoever has none"
        assert self._next_sequence is not None, "the server says where to begin"
        if sending.sequence_id is None:
            self._next_sequence += len(sending.messages)
            sending.sequence_id = self._next_sequence - 1
        envelope = Envelope(self._number, self.name, sending.sequence_id, sending.publish_time_ms)
        frame = send_frame(envelope, sending.messages, is_batch=sending.is_batch)
        if len(frame) > connection.max_message_size + FRAME_PADDING:
            # The server would close the connection, for all who share it.
            self._pending.remove(sending)
            sending.fail(
                MessageTooLarge(
                    f"A message of {len(frame)} bytes is too large: the server accepts {connection.max_message_size}."
                )
            )
            self._tell_idle()
        elif connection.is_open:  # or this stay is about to end, and the next one writes it
            sending.was_written = True
            connection.write(frame)

    def _confirm(self, receipt: api.CommandSendReceipt) -> None:
        sending = self._oldest(receipt.sequence_id)
        if sending is not None:
            self._pending.popleft()
            sending.succeed(MessageId.from_wire(self.topic, receipt.message_id))
            self._tell_idle()

    def _refuse(self, refusal: api.CommandSendError) -> None:
        error = ServerRefused(refusal.error, refusal.message)
        match refusal.error:
            case api.TopicTerminatedError | api.TopicNotFound | api.ProducerFenced | api.AuthorizationError:
                # Those before it are confirmed by now, or they would go to another segment as well.
                if self._oldest(refusal.sequence_id) is not None:
                    self._fail(error)
            case api.NotAllowedError:
                if (sending := self._oldest(refusal.sequence_id)) is not None:
                    self._pending.popleft()
                    sending.fail(error)
                    self._tell_idle()
            case _:
                self._lose(error)

    def _oldest(self, sequence_id: int) -> Sending | None:
        """The oldest message, which is the one that the server may speak of; None if it speaks of an earlier one."""
        if not self._pending:
            return None
        oldest = self._pending[0]
        assert oldest.sequence_id is not None, "everything pending was written in this stay"
        if sequence_id < oldest.sequence_id:
            return None  # confirmed on an earlier connection, and sent again
        if sequence_id > oldest.sequence_id:
            error = ServerMisbehaved(
                f"The server spoke of message {sequence_id} of {self.topic} before {oldest.sequence_id}: its fault."
            )
            self._fail(error)
            raise error
        return oldest

    def _forget_settled(self) -> None:
        if any(sending.is_settled for sending in self._pending):
            self._pending = deque(sending for sending in self._pending if not sending.is_settled)
            self._tell_idle()

    def _tell_idle(self) -> None:
        if not self._pending:
            self._owner.idle(self)
