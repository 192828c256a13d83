"""Sizes of frames as column expressions: as `spark.analysis.frames`, with which a test compares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it

from spark.analysis import frames

if TYPE_CHECKING:
    from pyspark.sql import Column


def varint_length(value: Column) -> Column:
    """`bin` writes a number without leading zeros, and 0 as "0"."""
    return F.ceil(F.length(F.bin(value)) / 7)


def snapshot_bytes(entries: Column) -> Column:
    most = frames.MOST_IN_A_FRAME
    whole, rest = F.floor(entries / most), entries % most
    last = F.when((rest > 0) | (whole == 0), frame_bytes(rest)).otherwise(F.lit(0))
    return whole * frames.frame_bytes(most) + last


def frame_bytes(entries: Column) -> Column:
    body = frames.ID_BYTES + 1 + varint_length(entries) + entries
    return frames.FIXED_BYTES + varint_length(body) + body
