"""Which store this is: founded once, marked in every bucket, and refused where it cannot carry Vela.

A bucket that does not carry the mark of the store holds other data than ours, or none: what is absent there was not
deleted.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import trio

from metadata import keys
from metadata.directory import Directory
from metadata.errors import RecordDamaged, StoreError, StoreRefused, StoreUnavailable
from metadata.lanes import Lane
from metadata.link import LinkLost, Reply
from metadata.stored_values import UNREADABLE
from metadata.unwrap import unwrapped
from metadata.urls import Endpoint

log = logging.getLogger(__name__)

FORMAT: Final = 1
# `#!lua` scripts, which refuse keys of a foreign slot, came with Redis 7.
_OLDEST_SERVER: Final = 7


class StoreRecord(msgspec.Struct, frozen=True):
    """The content of `/store`: written once, by the first node that ever saw the store."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    format: int
    buckets: int


class Identity:
    def __init__(self, directory: Directory, commands: Lane, bulk: Lane) -> None:
        self.id = ""
        self.doubt = ""  # what is wrong with the key that says which store this is; empty while nothing is
        self.is_another = False  # it says that this is another store, or one that this Vela does not know
        self._record: StoreRecord | None = None
        self.unmarked = set(range(keys.BUCKETS))  # buckets whose mark was not seen since the start
        self._directory = directory
        self._commands = commands
        self._bulk = bulk

    @property
    def mark(self) -> bytes:
        """What every bucket of our store holds under its marker key."""
        return self.id.encode()

    async def establish(self) -> None:
        """Find or found the store, and refuse what cannot carry Vela."""
        await self._check_servers()
        founding = StoreRecord(os.urandom(8).hex(), FORMAT, keys.BUCKETS)
        # Read first, here and below: a full store refuses even writes that would change nothing.
        if await self._commands.call(keys.STORE_SLOT, "GET", keys.STORE) is None:
            await self._commands.call(keys.STORE_SLOT, "SET", keys.STORE, msgspec.json.encode(founding), "NX")
        found = _decode(await self._commands.call(keys.STORE_SLOT, "GET", keys.STORE))
        if found.format > FORMAT:
            raise StoreRefused(f"the store has format {found.format}, this Vela knows {FORMAT}: run a newer Vela on it")
        if found.format < FORMAT:
            raise StoreRefused(
                f"the store has format {found.format}, which no Vela has ever written: "
                f"restore the key {keys.STORE.decode()}, or use another store"
            )
        if found.buckets != keys.BUCKETS:
            raise StoreRefused(
                f"the store has {found.buckets} buckets, this Vela works with {keys.BUCKETS}: use another store"
            )
        self.id = found.id
        self._record = found
        await self._mark_all(fresh=found.id == founding.id)

    async def check(self, lane: Lane) -> None:
        """See whether this is still the store that it was at the start."""
        try:
            found = await lane.call(keys.STORE_SLOT, "GET", keys.STORE)
            record = None if found is None else _decode(found)
        except (RecordDamaged, StoreRefused) as error:
            self.doubt = f"{str(error).rstrip('.')}; restore it"
            self.is_another = True
        else:
            self.doubt = "" if record == self._record else _changed(record, self._record)
            # Where the key is merely gone, the marks in the buckets say what the data are.
            self.is_another = record is not None and record != self._record

    async def see_marked(self, buckets: Sequence[int], *, fresh: bool = False) -> None:
        """See that these buckets carry the mark of this store; one without any gets it, once in a node's life."""
        unmarked = [b for b, mark in zip(buckets, await self._marks(buckets), strict=True) if mark is None]
        if unmarked:
            slots = keys.BUCKET_SLOTS
            await self._bulk.gather([(slots[b], ("SET", keys.marker_key(b), self.mark, "NX")) for b in unmarked])
            if not fresh:
                log.warning("%d of %d buckets had no mark of this store and got it now", len(unmarked), keys.BUCKETS)
        marks = await self._marks(buckets)
        # A key of another type is damage of one bucket, which the feed takes for foreign, and not another data set.
        foreign = sum(mark != self.mark and not isinstance(mark, StoreError) for mark in marks)
        if foreign:
            raise StoreRefused(
                f"{foreign} of the store's buckets belong to another Vela store: "
                "this is a mixture of two data sets; restore one of them"
            )
        self.unmarked -= set(buckets)

    async def _check_servers(self) -> None:
        for endpoint in self._directory.primaries():
            try:
                link = await self._commands.link(endpoint)
                info = _info(await link.call("INFO"))
            except LinkLost as error:
                log.warning("%s was not checked: %s", endpoint, error)
                continue
            version = info.get("redis_version", "")
            if version and int(version.split(".")[0]) < _OLDEST_SERVER:
                raise StoreRefused(f"{endpoint} is version {version}: Vela needs Redis 7, Valkey 7.2 or newer")
            policy = info.get("maxmemory_policy", "noeviction")
            if policy != "noeviction":
                raise StoreRefused(
                    f"{endpoint} may evict topics under its maxmemory-policy {policy}: set it to noeviction"
                )

    async def _mark_all(self, *, fresh: bool) -> None:
        """Mark what can be reached now; the buckets of a shard that is down are marked when it is first followed."""
        by_owner: dict[Endpoint | None, list[int]] = {}
        for bucket, slot in enumerate(keys.BUCKET_SLOTS):
            by_owner.setdefault(self._directory.owner(slot), []).append(bucket)
        with unwrapped():
            async with trio.open_nursery() as nursery:
                for buckets in by_owner.values():
                    nursery.start_soon(self._mark_if_reachable, buckets, fresh)

    async def _mark_if_reachable(self, buckets: Sequence[int], fresh: bool) -> None:
        try:
            await self.see_marked(buckets, fresh=fresh)
        except StoreUnavailable as error:
            log.warning("%d of %d buckets are out of reach: %s", len(buckets), keys.BUCKETS, error)

    async def _marks(self, buckets: Sequence[int]) -> list[Reply]:
        slots = keys.BUCKET_SLOTS
        return await self._bulk.gather([(slots[b], ("GET", keys.marker_key(b))) for b in buckets], refusals=True)


def _decode(data: bytes | None) -> StoreRecord:
    try:
        return msgspec.json.decode(data or b"", type=StoreRecord)
    except UNREADABLE:
        raise StoreRefused(
            f"the key {keys.STORE.decode()} of the store holds something else: {str(data)[:80]}"
        ) from None


def _changed(record: StoreRecord | None, before: StoreRecord | None) -> str:
    if record is None:
        return f"the key {keys.STORE.decode()} of the store is gone: restore it"
    if before is not None and record.id == before.id:
        return (
            f"the store has format {record.format} with {record.buckets} buckets now, and this Vela knows format "
            f"{FORMAT} with {keys.BUCKETS}: run a Vela that knows it"
        )
    return "another store stands in the place of this one: restore its data, or restart Vela to accept it as it is"


def _info(text: Reply) -> dict[str, str]:
    """Empty where the user may not ask."""
    lines = bytes(text).decode().splitlines() if isinstance(text, bytes) else []
    return dict(line.split(":", 1) for line in lines if ":" in line)
