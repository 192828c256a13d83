"""Which servers of the store take no writes, and why: said once in the log, and for as long as it lasts at `/readyz`.

A server that cannot save what it is told refuses every write with MISCONF. That may last for hours, so whoever writes
is refused at once instead of waiting for it.
"""

from __future__ import annotations

import logging

from metadata.errors import WritesRefused
from metadata.urls import Endpoint

log = logging.getLogger(__name__)


class WriteTrouble:
    """Shared by all lanes to the store. Those who write note it, and the change feed tries whether it is over."""

    def __init__(self) -> None:
        self._reasons: dict[Endpoint, str] = {}

    def __contains__(self, endpoint: Endpoint) -> bool:
        return endpoint in self._reasons

    @property
    def doubts(self) -> list[str]:
        """A sentence for each server that takes no writes."""
        return [
            f"the store at {endpoint} takes no writes ({reason}): make room on its disk, or see its log"
            for endpoint, reason in sorted(self._reasons.items(), key=lambda pair: str(pair[0]))
        ]

    def refused(self, endpoint: Endpoint, text: str) -> WritesRefused:
        """Note that this server has answered a write with that text; what to raise."""
        reason = text.partition(" ")[2].strip().rstrip(".") or text
        if endpoint not in self._reasons:
            log.error("%s takes no writes: %s", endpoint, reason)
        self._reasons[endpoint] = reason
        return WritesRefused("The store takes no writes now, because it cannot save them: make room on its disk.")

    def is_over(self, endpoint: Endpoint) -> None:
        """It has taken a write."""
        if self._reasons.pop(endpoint, None) is not None:
            log.warning("%s takes writes again", endpoint)

    def retain(self, endpoints: frozenset[Endpoint] | set[Endpoint]) -> None:
        """Others are servers of the store no more."""
        for endpoint in [endpoint for endpoint in self._reasons if endpoint not in endpoints]:
            del self._reasons[endpoint]
