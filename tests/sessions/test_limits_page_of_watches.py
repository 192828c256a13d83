"""What docs/limits.md says of connections and watches is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import connection
from gateway.settings import Settings
from protocol import names
from sessions import classic, dialogue, patterns, set_groups

PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
SETTINGS = Settings()
_UNITS = {"": 1, "characters": 1, "bytes": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "s": 1}

# What a row begins with, and the numbers that stand in its column of defaults, in their order.
ROWS: dict[str, tuple[float, ...]] = {
    "connections of a node": (SETTINGS.max_connections,),
    "connections from one address": (SETTINGS.max_connections_per_address,),
    "watches and registered consumers of a connection, together": (SETTINGS.max_watches_per_connection,),
    "watches opened per second": (SETTINGS.max_opens_per_second,),
    "filters of a namespace watch": (SETTINGS.max_filters,),
    "one filter, key and value together": (SETTINGS.max_property_size,),
    "all filters of a watch": (dialogue.MAX_FILTER_BYTES,),
    "hash that a watch comes back with": (set_groups.MAX_HASH_LENGTH,),
    "size of a message": (SETTINGS.max_message_size,),
    "bytes of frames that have arrived in part": (SETTINGS.receive_total_limit,),
    "bytes that watches and registered consumers of all connections": (SETTINGS.watch_total_limit,),
    "the same of one connection": (SETTINGS.watch_total_limit / 4,),
    "size of a frame before CONNECT": (connection.HANDSHAKE_FRAME_LIMIT,),
    "time until CONNECT": (SETTINGS.handshake_timeout,),
    "silence of a client": (SETTINGS.keep_alive,),
    "a client takes no byte": (SETTINGS.stall_limit,),
    "replies waiting for a client": (SETTINGS.outbox_limit,),
    "bytes waiting for all clients together": (SETTINGS.outbox_total_limit,),
    "length of a pattern of topics": (patterns.MAX_PATTERN_LENGTH,),
    "questions about classic topics of one connection": (classic._MOST_ASKED,),
    "size of such a question": (classic.MAX_QUESTION_SIZE,),
    "anything that claims to be the name": (names.MAX_TEXT_LENGTH,),
}


def numbers(text: str) -> tuple[float, ...]:
    found = re.findall(r"(?<![\w.])(\d[\d,]*)(?: (KB|MB|GB|s|characters|bytes)\b)?", text)
    return tuple(float(number.replace(",", "")) * _UNITS[unit] for number, unit in found)


@pytest.mark.parametrize("beginning", ROWS)
def test_the_page_of_limits_says_what_the_code_does(beginning: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {beginning}")]
    assert rows, "no such row"
    assert numbers(rows[0].split(" | ")[2]) == ROWS[beginning]


def test_numbers_are_read_with_their_units() -> None:
    assert numbers("10,000") == (10_000,)
    assert numbers("256 KB; 1 MB where it carries (V5)") == (256 * 1_024, 1_048_576)
    assert numbers("30 s") == (30,)


def test_the_defaults_behind_the_settings_are_those_of_the_settings() -> None:
    assert SETTINGS.receive_total_limit == connection.RECEIVE_TOTAL
    assert SETTINGS.watch_total_limit == connection.WATCH_TOTAL
    terms = dialogue.Terms("pulsar://h:1")
    assert (terms.max_filter_size, terms.max_filters) == (SETTINGS.max_property_size, SETTINGS.max_filters)
    assert (terms.max_watches, terms.max_watch_bytes) == (
        SETTINGS.max_watches_per_connection,
        SETTINGS.watch_total_limit // 4,
    )
