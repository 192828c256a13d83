"""Patterns of topic names, as clients of classic topics send them: which names one stands for.

A client has its own idea of the domain, so neither the pattern's nor the name's counts; and a pattern names topics, so
all partitions of a topic match or none does.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import re2

from protocol.names import NON_PERSISTENT, PERSISTENT, NamespaceName, TopicName
from sessions.errors import BadPattern, LongPattern

# As Pulsar has it. A client that needs more lists everything and chooses by itself.
MAX_PATTERN_LENGTH: Final = 50
# What one compiled pattern may take; those that would need more are slower instead.
_MEMORY: Final = 1 << 20

_OPTIONS: Final = re2.Options()
_OPTIONS.max_mem = _MEMORY
_OPTIONS.log_errors = False
_OPTIONS.never_capture = True


def subject_of(namespace: NamespaceName, local: str) -> bytes:
    """What all patterns of a namespace are compared with for this topic."""
    return f"{namespace}/{_base(local)}".encode()


class TopicPattern:
    """A pattern within one namespace, asked about local names."""

    __slots__ = ("_namespace", "_regexp", "text")

    def __init__(self, namespace: NamespaceName, text: str) -> None:
        """Raise LongPattern or BadPattern for one that cannot be used."""
        if len(text) > MAX_PATTERN_LENGTH:
            raise LongPattern(f"A pattern has at most {MAX_PATTERN_LENGTH} characters, not {len(text)}: shorten it.")
        self.text = text
        self._namespace = namespace
        try:
            self._regexp = re2.compile(_without_domain(text).encode(), _OPTIONS)
        except (re2.error, UnicodeEncodeError):
            raise BadPattern(
                f"{text!r} is not a pattern that this server understands: it takes those of RE2."
            ) from None

    def matches(self, local: str) -> bool:
        return self.fits(subject_of(self._namespace, local))

    def fits(self, subject: bytes) -> bool:
        """The same of a topic's subject, for one that is compared with many patterns."""
        return self._regexp.fullmatch(subject) is not None


def _without_domain(text: str) -> str:
    before, separator, rest = text.partition("://")
    if not separator:
        return text
    for domain in (NON_PERSISTENT, PERSISTENT):
        if before.endswith(domain):
            # What stands before it belongs to the pattern, like ^ or \Q.
            return before.removesuffix(domain) + rest
    raise BadPattern(f"{text!r} is no pattern of topics: begin it with persistent:// or without a domain.")


# The partitions of a topic come one after the other.
@lru_cache(maxsize=1_024)
def _base(local: str) -> str:
    return TopicName.classic("t", "n", local).base.local
