"""Headers of entries: read back as they were written, where the search by time looks for them, and never guessed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.errors import RecordDamaged
from metadata.log_entries import Entry, StoredEntry, pack_header, stored_entries, stream_id

LONGS = st.integers(0, 2**64 - 1)
HASHES = st.integers(0, 2**32 - 1)
ENTRIES = st.builds(
    Entry,
    LONGS,
    st.integers(0, 2**32 - 1),
    st.binary(max_size=100),
    st.none() | st.tuples(LONGS, LONGS),
    st.none() | st.tuples(HASHES, HASHES),
)


@given(ENTRIES, st.integers(0, 2**53))
def test_an_entry_is_read_as_it_was_written(entry: Entry, index: int) -> None:
    reply = [stream_id(index).encode(), [b"h", pack_header(entry), b"d", entry.body]]
    assert stored_entries([reply]) == [StoredEntry(index, *entry)]


def test_headers_are_what_stands_in_stores_already() -> None:
    """Another form would need another version."""
    assert pack_header(Entry(0x0102030405060708, 9, b"body")).hex() == "0100" + "0102030405060708" + "00000009"
    assert pack_header(Entry(1, 2, b"", (3, 4), (5, 6))).hex() == (
        "0103" + "0000000000000001" + "00000002" + "0000000000000003" + "0000000000000004" + "00000005" + "00000006"
    )


@pytest.mark.parametrize(
    "reply",
    [
        [b"1-0", [b"h", b"", b"d", b""]],
        [b"1-0", [b"h", b"\x02" + bytes(13), b"d", b""]],
        [b"1-0", [b"h", b"\x01\x04" + bytes(12), b"d", b""]],
        [b"1-0", [b"h", b"\x01\x01" + bytes(12), b"d", b""]],
        [b"1-0", [b"d", b""]],
        [b"x-0", [b"h", b"\x01" + bytes(13), b"d", b""]],
        None,
    ],
    ids=["empty", "version", "flags", "cut", "fields", "id", "nothing"],
)
def test_what_is_no_entry_of_ours_is_called_damaged(reply: object) -> None:
    with pytest.raises(RecordDamaged):
        stored_entries([reply])
