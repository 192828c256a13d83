"""How far a subscription has come in one log: what is acknowledged, down to the messages of a batch.

Acknowledgements come in order or nearly so, but one entry that nobody settles may hold the mark back while
millions above it are done. They are kept as bits in chunks, so that each costs the same wherever it falls,
and a wholly acknowledged chunk is one shared number.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from metadata.errors import RecordDamaged

# An encoded cursor is rewritten with each group of acknowledgements, so it must stay small. What is left out is
# delivered again after a change of owner, and never lost: the lowest come first.
CHUNKS_ENCODED = 1_000
RUNS_ENCODED = 10_000
PARTIALS_ENCODED = 1_000
PARTIAL_WORDS_ENCODED = 10_000
# A billion entries behind one that is not settled; the next run starts a record of its own.
_RUN_LENGTH = 1 << 20
# More messages than any client puts into a batch. What claims to be larger is not believed.
LARGEST_BATCH = 100_000
# More in memory than that, all together, means a client that finishes no batch; the next ones are kept whole. With what
# each costs beside its words, these are some MB.
PARTIAL_WORDS_KEPT = 50_000

_SHIFT = 10
_CHUNK = 1 << _SHIFT
_LOW = _CHUNK - 1
_FULL = (1 << _CHUNK) - 1
_CHUNK_BYTES = _CHUNK // 8

_VERSION = 1
_HEAD = struct.Struct("<BqII")
_RECORD = struct.Struct("<QI")
_PARTIAL = struct.Struct("<QI")
_WORD_BITS = 64
# For batches whose size is not known here.
WORDS_ACCEPTED = -(-LARGEST_BATCH // _WORD_BITS)


class Cursor:
    """Every entry up to `mark` is acknowledged, and some above it."""

    __slots__ = ("_above", "_chunks", "_partial_words", "_partials", "_top", "mark")

    def __init__(self, mark: int = -1) -> None:
        self.mark = mark
        # Bits of a chunk at or below the mark mean nothing. Chunks wholly below it are dropped.
        self._chunks: dict[int, int] = {}
        # How many entries above the mark are acknowledged, and the highest of them: beyond it is nothing to skip.
        self._above = 0
        self._top = mark
        # Batches of which some messages are done: a bit for each that is not. And the words that all these bits fill.
        self._partials: dict[int, int] = {}
        self._partial_words = 0

    def __repr__(self) -> str:
        return f"Cursor(mark={self.mark}, above={self._above}, partials={len(self._partials)})"

    @property
    def top(self) -> int:
        """The highest acknowledged entry."""
        return self._top

    @property
    def has_partials(self) -> bool:
        """Whether there are batches of which only some messages are acknowledged."""
        return bool(self._partials)

    def ack(self, index: int) -> bool:
        """Settle one entry with all its messages; whether that changed anything."""
        mark = self.mark
        if index <= mark:
            return False
        if self._partials and (left := self._partials.pop(index, 0)):
            self._partial_words -= _word_count(left)
        if index == mark + 1:
            self.mark = index
            if self._above:
                self._advance()
            elif index > self._top:
                self._top = index
            return True
        number, bit = index >> _SHIFT, 1 << (index & _LOW)
        chunk = self._chunks.get(number, 0)
        if chunk & bit:
            return False
        chunk |= bit
        self._chunks[number] = _FULL if chunk == _FULL else chunk
        self._above += 1
        if index > self._top:
            self._top = index
        return True

    def ack_batch(self, index: int, ack_set: Sequence[int], batch_size: int = 0) -> bool:
        """Settle the messages of a batch whose bit is zero. Words that are missing are zero: their messages are done.

        Bits beyond `batch_size` are nobody's, unless it is not known (0).
        """
        if index <= self.mark or self.is_acked(index):
            return False
        if batch_size > LARGEST_BATCH:
            batch_size = 0
        if not batch_size and len(ack_set) > WORDS_ACCEPTED:
            return False
        left = _from_words(ack_set[: -(-batch_size // _WORD_BITS)] if batch_size else ack_set)
        if batch_size:
            left &= (1 << batch_size) - 1
        before = self._partials.get(index)
        if before is not None:
            left &= before
        if not left:
            return self.ack(index)
        if left == before:
            return False
        words = _word_count(left)
        if before is not None:
            words -= _word_count(before)
        elif left.bit_count() == batch_size or self._partial_words + words > PARTIAL_WORDS_KEPT:
            return False
        self._partials[index] = left
        self._partial_words += words
        return True

    def ack_cumulative(self, index: int, ack_set: Sequence[int] | None = None, batch_size: int = 0) -> bool:
        """Settle everything up to `index`, of which itself only the messages that `ack_set` says. Never goes back."""
        if ack_set:
            before = self._ack_up_to(index - 1)
            return self.ack_batch(index, ack_set, batch_size) or before
        return self._ack_up_to(index)

    def _ack_up_to(self, index: int) -> bool:
        mark = self.mark
        if index <= mark:
            return False
        if self._partials:
            self._partials = {key: left for key, left in self._partials.items() if key > index}
            self._partial_words = sum([_word_count(left) for left in self._partials.values()])
        if self._above:
            self._above -= self._acked_between(mark + 1, index + 1)
        self.mark = index
        self._drop_chunks(mark)
        if self._above:
            self._advance()
        self._top = max(self._top, self.mark)
        return True

    def _advance(self) -> None:
        """Take into the mark what follows it without a gap."""
        start = self.mark
        position = self.next_unacked(start + 1)
        self._above -= position - 1 - start
        self.mark = position - 1
        self._drop_chunks(start)
        if self.mark > self._top:
            self._top = self.mark

    def _drop_chunks(self, old_mark: int) -> None:
        chunks = self._chunks
        if not chunks:
            return
        # From the chunk of the old mark itself: it may have been the last entry there.
        first, end = old_mark >> _SHIFT, (self.mark + 1) >> _SHIFT
        if not self._above:
            chunks.clear()
        elif end - first <= len(chunks):
            for number in range(first, end):
                chunks.pop(number, None)
        else:
            self._chunks = {number: chunk for number, chunk in chunks.items() if number >= end}

    def is_acked(self, index: int) -> bool:
        if index <= self.mark:
            return True
        if index > self._top:
            return False
        return bool(self._chunks.get(index >> _SHIFT, 0) >> (index & _LOW) & 1)

    def remaining(self, index: int) -> int:
        """The messages of a batch that are not done, as bits; 0 if it is not known that some are."""
        return self._partials.get(index, 0)

    def ack_set_of(self, index: int) -> tuple[int, ...]:
        """The words that MESSAGE carries for a batch of which some messages are done; empty for any other."""
        left = self._partials.get(index)
        return _to_words(left) if left else ()

    def next_unacked(self, index: int) -> int:
        """The first entry from `index` on that is not acknowledged; it may not exist yet."""
        if index <= self.mark:
            index = self.mark + 1
        while index <= self._top:
            chunk = self._chunks.get(index >> _SHIFT)
            if chunk is None:
                break
            # The ones from here up, then what ends them.
            ones = chunk >> (index & _LOW)
            run = (~ones & (ones + 1)).bit_length() - 1
            if not run:
                break
            index += run
            if index & _LOW:
                break
        return index

    def unacked_between(self, first: int, end: int) -> int:
        """How many entries of `first` to `end` - 1 are not acknowledged; partly done batches count."""
        first = max(first, self.mark + 1)
        if first >= end:
            return 0
        if first == self.mark + 1 and end > self._top:
            return end - first - self._above
        return end - first - self._acked_between(first, end)

    def _acked_between(self, first: int, end: int) -> int:
        """As above, for the acknowledged ones, and only above the mark."""
        first, last = max(first, self.mark + 1), min(end - 1, self._top)
        if first > last:
            return 0
        low, high = first >> _SHIFT, last >> _SHIFT
        chunks = self._chunks
        numbers = range(low, high + 1) if high - low <= len(chunks) else [n for n in chunks if low <= n <= high]
        count = 0
        for number in numbers:
            chunk = chunks.get(number, 0)
            if number == high:
                chunk &= (2 << (last & _LOW)) - 1
            if number == low:
                chunk >>= first & _LOW
            count += chunk.bit_count()
        return count

    def move_to(self, index: int) -> None:
        """Start anew: `index` is the first that is not acknowledged, and so is everything after it."""
        self.mark = self._top = index - 1
        self._above = 0
        self._chunks.clear()
        self._partials.clear()
        self._partial_words = 0

    def encode(self) -> bytes:
        """The cursor as bytes, bounded: of very many islands the lowest are kept."""
        records: list[bytes] = []
        literals = run_first = run = 0
        for number in sorted(self._chunks):
            chunk = self._chunks[number]
            if number == (self.mark + 1) >> _SHIFT:
                chunk &= -1 << ((self.mark + 1) & _LOW)
            if run and not (chunk == _FULL and number == run_first + run and run < _RUN_LENGTH):
                records.append(_RECORD.pack(run_first, run))
                run = 0
            if literals >= CHUNKS_ENCODED or len(records) >= CHUNKS_ENCODED + RUNS_ENCODED:
                break
            if chunk == _FULL:
                run_first = run_first if run else number
                run += 1
            elif chunk:
                literals += 1
                records.append(_RECORD.pack(number, 0) + chunk.to_bytes(_CHUNK_BYTES, "little"))
        if run:
            records.append(_RECORD.pack(run_first, run))
        partials = self._partials_encoded() if self._partials else []
        head = _HEAD.pack(_VERSION, self.mark, len(records), len(partials))
        return b"".join([head, *records, *(self._encode_partial(index) for index in partials)])

    def _partials_encoded(self) -> list[int]:
        lowest = sorted(self._partials)[:PARTIALS_ENCODED]
        words = accumulate([_word_count(self._partials[index]) for index in lowest])
        return lowest[: bisect_right(list(words), PARTIAL_WORDS_ENCODED)]

    def _encode_partial(self, index: int) -> bytes:
        left = self._partials[index]
        size = -(-left.bit_length() // 8)
        return _PARTIAL.pack(index, size) + left.to_bytes(size, "little")

    @classmethod
    def decode(cls, data: bytes) -> "Cursor":
        """What `encode` wrote; RecordDamaged if it is not that."""
        try:
            return cls._decode(data)
        except (struct.error, _Damaged) as error:
            raise RecordDamaged("The stored cursor cannot be read: reset the subscription to a position.") from error

    @classmethod
    def _decode(cls, data: bytes) -> "Cursor":
        version, mark, records, partials = _HEAD.unpack_from(data)
        if version != _VERSION or mark < -1:
            raise _Damaged
        cursor, position = cls(mark), _HEAD.size
        end = mark + 1
        for _ in range(records):
            number, run = _RECORD.unpack_from(data, position)
            position += _RECORD.size
            if number << _SHIFT < end & ~_LOW or run > _RUN_LENGTH:
                raise _Damaged
            if run:
                cursor._chunks.update(dict.fromkeys(range(number, number + run), _FULL))
            else:
                chunk = int.from_bytes(_slice(data, position, _CHUNK_BYTES), "little")
                position += _CHUNK_BYTES
                if not chunk:
                    raise _Damaged
                cursor._chunks[number] = chunk
            end = (number + max(run, 1)) << _SHIFT
            cursor._above += run << _SHIFT if run else chunk.bit_count()
            cursor._top = end - 1 if run else (number << _SHIFT) + chunk.bit_length() - 1
        # What stands at the mark or right above it would belong into it.
        if cursor._chunks.get((mark + 1) >> _SHIFT, 0) & ((2 << ((mark + 1) & _LOW)) - 1):
            raise _Damaged
        for _ in range(partials):
            index, size = _PARTIAL.unpack_from(data, position)
            position += _PARTIAL.size
            left = int.from_bytes(_slice(data, position, size), "little")
            position += size
            if not left or cursor.is_acked(index):
                raise _Damaged
            cursor._partials[index] = left
            cursor._partial_words += _word_count(left)
        if position != len(data):
            raise _Damaged
        return cursor


class _Damaged(Exception):
    """Bytes that no cursor encodes to."""


def _slice(data: bytes, position: int, size: int) -> bytes:
    if position + size > len(data):
        raise _Damaged
    return data[position : position + size]


def _from_words(words: Sequence[int]) -> int:
    return int.from_bytes(b"".join([(word & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little") for word in words]), "little")


def _word_count(bits: int) -> int:
    return -(-bits.bit_length() // _WORD_BITS)


def _to_words(bits: int) -> tuple[int, ...]:
    count = _word_count(bits)
    return struct.unpack(f"<{count}q", bits.to_bytes(count * 8, "little"))
