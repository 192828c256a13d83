"""Who gets which entry of a log: the state machine of one subscription. No I/O, no clock, nothing to await."""

from segments.dispatch.dispatcher import Dispatcher
from segments.dispatch.errors import ConsumerAssignError, ConsumerBusy, DispatchRefusal
from segments.dispatch.key_owners import KeySharing
from segments.dispatch.receivers import Delivery, Kind, Receiver

__all__ = [
    "ConsumerAssignError",
    "ConsumerBusy",
    "Delivery",
    "DispatchRefusal",
    "Dispatcher",
    "KeySharing",
    "Kind",
    "Receiver",
]
