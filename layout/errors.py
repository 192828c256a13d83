"""Every refusal of the domain, as a type that carries its HTTP status and a sentence that says what to do."""

from typing import ClassVar


class LayoutError(Exception):
    """The base of all refusals of this package; `http_status` is what the admin API answers with."""

    http_status: ClassVar[int] = 500


class InvalidRange(LayoutError):
    """A hash, or a range of hashes, that does not lie on the ring."""

    http_status = 412


class InvalidSegmentCount(LayoutError):
    """A topic cannot start with this many segments."""

    http_status = 412


class SegmentNotFound(LayoutError):
    """The layout has no segment with this id: it never had one, or it was pruned."""

    http_status = 404


class SegmentNotActive(LayoutError):
    """A sealed segment was to be split or merged."""

    http_status = 412


class SegmentsNotAdjacent(LayoutError):
    """Two segments were to be merged whose ranges do not touch."""

    http_status = 412


class RangeTooNarrow(LayoutError):
    """A range of a single hash was to be split."""

    http_status = 412


class SegmentStillActive(LayoutError):
    """An active segment was to be pruned."""

    http_status = 412


class ParentsNotPruned(LayoutError):
    """A segment was to be pruned before the parents it replaced."""

    http_status = 412


class InvalidLayout(LayoutError):
    """A layout breaks one of the rules that every operation keeps."""


class InvalidRecord(LayoutError):
    """A stored record is not the JSON of a topic."""
