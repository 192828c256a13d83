"""The names of namespaces, topics and segments: parsed, checked and printed."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from protocol.errors import InvalidName

MAX_TENANT_LENGTH = 255
MAX_NAMESPACE_LENGTH = 255
MAX_LOCAL_NAME_BYTES = 1024
# Of anything that claims to be a name, in characters: no real one comes near it. Looked at first of all, because a name
# may be as long as a command, and each further check would cost with it.
MAX_TEXT_LENGTH = 4 * 1024
# What may follow that much: a partition suffix or the descriptor of a segment, with the longest numbers.
_LONGEST_SUFFIX = len("/0000-ffff-") + 19

TOPIC = "topic"
SEGMENT = "segment"
PERSISTENT = "persistent"
NON_PERSISTENT = "non-persistent"
_DOMAINS = frozenset({TOPIC, SEGMENT, PERSISTENT, NON_PERSISTENT})
# In these domains a fourth path element is the cluster of a name form that was given up long ago.
_FLAT_DOMAINS = frozenset({PERSISTENT, NON_PERSISTENT})

_TENANT_OR_NAMESPACE = re.compile(r"[-=:.\w]+", re.ASCII)
_PARTITIONED = re.compile(r"(?P<base>.+)-partition-(?P<index>0|[1-9][0-9]{0,9})", re.DOTALL)
_DESCRIPTOR = re.compile(r"(?P<start>[0-9a-f]{4})-(?P<end>[0-9a-f]{4})-(?P<id>0|[1-9][0-9]{0,18})")
# Partition numbers and segment ids are a Java int and long on the other side.
_MAX_INT = 2**31 - 1
_MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True, order=True)
class NamespaceName:
    tenant: str
    namespace: str

    def __post_init__(self) -> None:
        _check_element("tenant", self.tenant, MAX_TENANT_LENGTH)
        _check_element("namespace", self.namespace, MAX_NAMESPACE_LENGTH)

    @classmethod
    def parse(cls, text: str) -> NamespaceName:
        _check_text(text)
        parts = text.split("/", 2)
        if len(parts) != 2:
            raise InvalidName(f"{_shown(text)} is not a namespace: write it as tenant/namespace.")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.tenant}/{self.namespace}"


@dataclass(frozen=True, slots=True)
class TopicName:
    """A name in any domain that clients use; only `topic://` names are names of scalable topics."""

    domain: str
    tenant: str
    namespace: str
    local: str

    def __post_init__(self) -> None:
        if self.domain not in _DOMAINS:
            raise InvalidName(
                f"{_shown(self.domain)} is not a topic domain: use topic://, persistent:// or segment://."
            )
        _check_element("tenant", self.tenant, MAX_TENANT_LENGTH)
        _check_element("namespace", self.namespace, MAX_NAMESPACE_LENGTH)
        _check_local(self.local)
        if self.domain in _FLAT_DOMAINS and "/" in self.local:
            raise InvalidName(
                f"{_shown(str(self))} has more than three parts: write it as {self.domain}://tenant/namespace/topic."
            )
        # The cap is on what gets stored: the parent of a segment, the base of a partition.
        if len(self._canonical_local.encode()) > MAX_LOCAL_NAME_BYTES:
            raise _too_long(self.local)

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Read a full name, or a short form: `topic` or `tenant/namespace/topic`, both persistent."""
        _check_text(text)
        domain, separator, path = text.partition("://")
        if not separator:
            parts = text.split("/", 3)
            if len(parts) == 1:
                return cls(PERSISTENT, "public", "default", text)
            if len(parts) == 3:
                return cls(PERSISTENT, *parts)
            raise InvalidName(f"{_shown(text)} is not a topic name: write it as topic://tenant/namespace/topic.")
        parts = path.split("/", 2)
        if len(parts) != 3:
            raise InvalidName(
                f"{_shown(text)} has too few parts: write it as {_shown_domain(domain)}://tenant/namespace/topic."
            )
        return cls(domain, *parts)

    @classmethod
    def scalable(cls, tenant: str, namespace: str, local: str) -> TopicName:
        """The `topic://` name made of these parts."""
        return cls(TOPIC, tenant, namespace, local)

    @classmethod
    def classic(cls, tenant: str, namespace: str, local: str) -> TopicName:
        """The `persistent://` name made of these parts."""
        return cls(PERSISTENT, tenant, namespace, local)

    @property
    def namespace_name(self) -> NamespaceName:
        return NamespaceName(self.tenant, self.namespace)

    @property
    def partition(self) -> int | None:
        """The index that a name like `orders-partition-3` ends in."""
        partitioned = _split_partition(self.local)
        return None if partitioned is None else partitioned[1]

    @property
    def base(self) -> TopicName:
        """The topic that a partition belongs to; any other name is its own base."""
        partitioned = _split_partition(self.local)
        return self if partitioned is None else TopicName(self.domain, self.tenant, self.namespace, partitioned[0])

    def partition_at(self, index: int) -> TopicName:
        """The name of one partition of this topic."""
        return TopicName(self.domain, self.tenant, self.namespace, f"{self.local}-partition-{index}")

    @property
    def canonical(self) -> TopicName:
        """The `topic://` name under which the layout of this topic is found, by whatever name it was asked for.

        Pulsar URL-encodes the local name of other domains here, so that `persistent://t/n/a b` resolves to a topic
        that is not the one called `a b`. Here both names meet.
        """
        return self if self.domain == TOPIC else TopicName.scalable(self.tenant, self.namespace, self._canonical_local)

    @property
    def _canonical_local(self) -> str:
        if self.domain == TOPIC:
            return self.local
        if self.domain == SEGMENT:
            return _split_segment(self.local)[0]
        partitioned = _split_partition(self.local)
        return self.local if partitioned is None else partitioned[0]

    def check_creatable(self) -> None:
        """Refuse what may be looked up but would only cause trouble as the name of a new topic."""
        if self.local != self.local.strip():
            raise InvalidName(f"The topic name {_shown(self.local)} begins or ends with white space: remove it.")
        if any(unicodedata.category(character) == "Cc" for character in self.local):
            raise InvalidName(f"The topic name {_shown(self.local)} contains control characters: remove them.")
        if not {".", ".."}.isdisjoint(self.local.split("/")):
            # HTTP clients fold these away, and would then act on another topic.
            raise InvalidName(f"The topic name {_shown(self.local)} has a path element . or ..: choose another.")
        if self.partition is not None:
            raise InvalidName(
                f"The topic name {_shown(self.local)} ends like a partition, which nobody could watch: choose another."
            )

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace}/{self.local}"


@dataclass(frozen=True, slots=True)
class SegmentName:
    """A segment of a scalable topic, with the hash range it serves; both ends belong to the range."""

    parent: TopicName
    start: int
    end: int
    segment_id: int

    def __post_init__(self) -> None:
        if self.parent.domain != TOPIC:
            raise InvalidName(f"{_shown(str(self.parent))} has no segments: only topic:// names do.")
        if not 0 <= self.start <= self.end <= 0xFFFF:
            raise InvalidName(f"A segment cannot reach from {self.start} to {self.end}: stay within 0 to 65535.")
        if not 0 <= self.segment_id <= _MAX_LONG:
            raise InvalidName(f"A segment cannot have the id {self.segment_id}.")

    @classmethod
    def parse(cls, text: str) -> SegmentName:
        topic = TopicName.parse(text)
        if topic.domain != SEGMENT:
            raise InvalidName(
                f"{_shown(text)} is not a segment: write it as segment://tenant/namespace/topic/0000-ffff-0."
            )
        _, start, end, segment_id = _split_segment(topic.local)
        return cls(topic.canonical, start, end, segment_id)

    @property
    def descriptor(self) -> str:
        """The last part of the name, like `0000-7fff-1`: first hash, last hash, id."""
        return f"{self.start:04x}-{self.end:04x}-{self.segment_id}"

    def __str__(self) -> str:
        parent = self.parent
        return f"{SEGMENT}://{parent.tenant}/{parent.namespace}/{parent.local}/{self.descriptor}"


def _check_text(text: str) -> None:
    if len(text) > MAX_TEXT_LENGTH:
        raise InvalidName(f"{_shown(text)} is longer than {MAX_TEXT_LENGTH} characters, which no name is: shorten it.")


def _check_element(what: str, text: str, longest: int) -> None:
    if not _TENANT_OR_NAMESPACE.fullmatch(text):
        raise InvalidName(f"{_shown(text)} is not a {what}: use letters, digits and any of _ - = : . only.")
    if text in (".", ".."):
        # HTTP clients fold these away, and would then act on something else.
        raise InvalidName(f"{_shown(text)} is not a {what}: choose another name.")
    if len(text) > longest:
        raise InvalidName(f"The {what} {_shown(text)} is longer than {longest} characters.")


def _check_local(local: str) -> None:
    if len(local) > MAX_LOCAL_NAME_BYTES + _LONGEST_SUFFIX:
        # First of all, because a name may be as long as a frame and each further check would cost with it.
        raise _too_long(local)
    if not local.strip():
        raise InvalidName(f"{_shown(local)} is not a topic name: it is blank.")
    if "" in local.split("/"):
        raise InvalidName(f"The topic name {_shown(local)} has an empty part: remove the extra slash.")
    try:
        local.encode()
    except UnicodeEncodeError:
        raise InvalidName(f"The topic name {_shown(local)} is not valid Unicode.") from None


def _too_long(local: str) -> InvalidName:
    return InvalidName(f"The topic name {_shown(local)} is longer than {MAX_LOCAL_NAME_BYTES} bytes: shorten it.")


def _split_partition(local: str) -> tuple[str, int] | None:
    match = _PARTITIONED.fullmatch(local)
    if match is None or int(match["index"]) > _MAX_INT:
        return None
    return match["base"], int(match["index"])


def _split_segment(local: str) -> tuple[str, int, int, int]:
    """Take the local part of a segment name apart: its parent's, first hash, last hash, id."""
    parent, _, descriptor = local.rpartition("/")
    match = _DESCRIPTOR.fullmatch(descriptor)
    if not parent.strip() or match is None:
        raise InvalidName(f"{_shown(local)} is not a segment: end it like /0000-ffff-0, with hash range and id.")
    start, end, segment_id = int(match["start"], 16), int(match["end"], 16), int(match["id"])
    if start > end or segment_id > _MAX_LONG:
        raise InvalidName(f"{_shown(local)} is not a segment: its hash range or its id is impossible.")
    return parent, start, end, segment_id


def _shown(text: str) -> str:
    """A name as error messages quote it: printable and short, however long and odd it is."""
    return repr(text if len(text) <= 100 else text[:100] + "...")


def _shown_domain(domain: str) -> str:
    return domain if domain in _DOMAINS else TOPIC
