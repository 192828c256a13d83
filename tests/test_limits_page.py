"""docs/limits.md says of each fixed limit what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from gateway import connection
from metadata.schemas import SchemaLimits
from protocol import long_commands, names
from segments import bounds, consumer_dialogue, consumers, conversation, cursors, producers, schemas, sending
from segments.around import LogLimits
from segments.dispatch import delayed, distribution

PAGE: Final = Path(__file__).parent.parent / "docs" / "limits.md"

# What a row is about, as its first cell begins, and a number that it has to name. A limit of several numbers has
# several lines here.
ROWS: Final[list[tuple[str, int]]] = [
    # Names.
    ("length of a tenant's and of a namespace's name", names.MAX_TENANT_LENGTH),
    ("length of a tenant's and of a namespace's name", names.MAX_NAMESPACE_LENGTH),
    ("length of a topic's local name", names.MAX_LOCAL_NAME_BYTES),
    ("length of a subscription's, a consumer's and a producer's name", bounds.LONGEST_NAME),
    # Schemas.
    ("a definition with its properties", SchemaLimits().size),
    ("properties of a schema", bounds.MOST_SCHEMA_PROPERTIES),
    ("versions of a topic, deleted ones included", SchemaLimits().versions),
    ("bytes of all versions of a topic", SchemaLimits().total),
    ("versions that a node keeps in memory", schemas._CACHE_BYTES),
    # Connections.
    ("size of a frame before CONNECT", connection.HANDSHAKE_FRAME_LIMIT),
    ("entries of a list in a command", long_commands.MOST_LISTED),
    ("ids of messages in a command", long_commands.IDS_PER_PART),
    ("ids of messages in a command", consumer_dialogue.WORK_PER_TURN),
    # Messages.
    ("properties of a producer, a consumer or a subscription", bounds.MOST_PROPERTIES),
    ("properties of a producer, a consumer or a subscription", bounds.PROPERTIES_BYTES),
    ("ranges of hashes that a Key_Shared consumer asks for", bounds.MOST_RANGES),
    ("consumers of a lost connection that leave before others are served", consumer_dialogue._LEAVING),
    ("producers and consumers of a connection", conversation._MOST_CLIENTS),
    ("requests of a connection under way", conversation._MOST_REQUESTS),
    ("acknowledgements of a connection that wait to be answered", consumer_dialogue._MOST_ACKS),
    ("bytes that wait for a consumer's connection", consumers.MOST_QUEUED),
    ("bytes that wait for a consumer's connection", distribution.SLICE_ENTRIES),
    ("bytes that wait for a consumer's connection", distribution.SLICE_BYTES),
    ("entries that are read ahead for a subscription", distribution.SLICE_ENTRIES),
    ("messages that a consumer of a Shared or Key_Shared subscription", LogLimits().max_unacked),
    ("delayed messages whose time is in memory", delayed.KEPT),
    ("chunks that wait for a consumer without room", distribution.LOOK_AHEAD),
    ("acknowledged entries above one that is not", cursors.CHUNKS_ENCODED),
    ("acknowledged entries above one that is not", cursors.RUNS_ENCODED),
    ("messages of a batch", cursors.LARGEST_BATCH),
    ("begun batches of which single messages are acknowledged", cursors.PARTIAL_WORDS_KEPT),
    ("begun batches of which single messages are acknowledged", cursors.PARTIALS_ENCODED),
    ("begun batches of which single messages are acknowledged", cursors.PARTIAL_WORDS_ENCODED),
    ("bytes that wait to be stored, of one log", LogLimits().queued_bytes),
    ("producers of a log", LogLimits().producers),
    ("subscriptions of a log", LogLimits().subscriptions),
    ("consumers of a subscription at a log", LogLimits().consumers),
    ("producers whose last message is remembered", sending._MOST_AWAY),
    ("messages of a producer whose place is remembered", producers._REMEMBERED),
]


def rows() -> dict[str, str]:
    """The limit as each row says it, by what the row is about."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[0]: row[2] for row in cells if len(row) == 4}


def spellings(value: int) -> set[str]:
    found = {str(value), f"{value:,}"}
    for unit, size in (("KB", 1024), ("MB", 1024**2)):
        if value % size == 0:
            found.add(f"{value // size} {unit}")
    return found


@pytest.mark.parametrize(("about", "value"), ROWS)
def test_limit_is_what_the_page_says(about: str, value: int) -> None:
    [said] = [said for row, said in rows().items() if row.startswith(about)]
    numbers = {match[0] for match in re.finditer(r"\d[\d,]*\d( [KM]B)?|\d( [KM]B)?", said)}
    numbers |= {number.split()[0] for number in numbers if "B" not in number}
    assert numbers & spellings(value), f"{said!r} does not say {value}"
