"""The JSON of the admin API, with Pulsar's field names, as far as the OpenAPI document has to describe it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Reason(msgspec.Struct, frozen=True):
    """Every refusal: one sentence that says what to do."""

    reason: str


class HashRange(msgspec.Struct, frozen=True):
    """A part of the hash ring, both ends included."""

    start: Annotated[int, Meta(ge=0, le=65_535)]
    end: Annotated[int, Meta(ge=0, le=65_535)]


class SegmentInfo(msgspec.Struct, frozen=True, rename="camel"):
    """One segment of a layout; -1 stands for "not sealed" in the sealing epoch and time."""

    segment_id: int
    hash_range: HashRange
    state: Literal["ACTIVE", "SEALED"]
    parent_ids: list[int]
    child_ids: list[int]
    created_at_epoch: int
    sealed_at_epoch: int
    created_at_ms: int
    sealed_at_ms: int


class ScalableTopicMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """A topic's record: its layout, sealed segments included, and its properties."""

    epoch: int
    next_segment_id: int
    segments: dict[str, SegmentInfo]
    properties: dict[str, str]


class TenantInfo(msgspec.Struct, frozen=True, rename="camel"):
    """What Pulsar's admin clients expect to learn about a tenant."""

    admin_roles: list[str]
    allowed_clusters: list[str]


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether this node can serve; otherwise `reason` joins all that stands in the way."""

    ready: bool
    reason: str = ""
    reasons: list[str] = []
