"""Commands to the right server, with Vela's own rules for redirects, retries and lost links.

A lane has its own connection to every primary, so that a long listing on one never delays a lease on another.
Reads, and scripts that do no harm twice, are repeated until they are answered. Of other scripts it is for the caller to
find out whether one whose reply was lost was executed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hiredis
import trio
from redis import RedisError
from redis.exceptions import AuthenticationError, NoPermissionError

from metadata.complaints import complain
from metadata.directory import Directory
from metadata.errors import OutcomeUnknown, RecordDamaged, StoreDenied, StoreError, StoreFull, StoreUnavailable
from metadata.link import Command, Link, LinkLost, Reply
from metadata.scripts import Script
from metadata.urls import Endpoint, named_by_server
from metadata.write_trouble import WriteTrouble
from protocol.backoff import Backoff

log = logging.getLogger(__name__)

Request = tuple[int, Command]  # hash slot, command

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 0.25
# The server is there but cannot serve this now; asking again later is right.
_TRY_LATER = ("TRYAGAIN", "CLUSTERDOWN", "LOADING", "READONLY", "MASTERDOWN", "NOREPLICAS", "BUSY")
_DENIED = ("NOAUTH", "WRONGPASS", "NOPERM")
# What a lane that is barred from writing still does.
_READS = frozenset(
    {
        "GET",
        "HGET",
        "HGETALL",
        "HMGET",
        "HKEYS",
        "HLEN",
        "EXISTS",
        "LRANGE",
        "PTTL",
        "TIME",
        "XINFO",
        "XRANGE",
        "XREVRANGE",
    }
)
# Of a script that fails: more would not fit into one line, and the damaged one is mostly among the first.
_KEYS_TOLD = 8


@dataclass(frozen=True, slots=True)
class Timeouts:
    connect: float = 3.0
    silence: float = 5.0  # without any answer on a connection that owes one
    patience: float = 10.0  # of one call, all its attempts together


@dataclass(slots=True)
class LaneCounters:
    opened: int = 0
    lost: int = 0
    redirects: int = 0
    retries: int = 0


class Lane:
    def __init__(
        self,
        name: str,
        directory: Directory,
        timeouts: Timeouts,
        *,
        scripts: Sequence[Script] = (),
        on_push: Callable[[Link, list[Any]], None] | None = None,
        on_lost: Callable[[Link], None] | None = None,
        trouble: WriteTrouble | None = None,
    ) -> None:
        self.trouble = WriteTrouble() if trouble is None else trouble
        self.barred: StoreError | None = None  # why nothing may be written, whatever the servers say
        self.name = name
        self.counters = LaneCounters()
        self._directory = directory
        self._timeouts = timeouts
        self._scripts = scripts
        self._on_push = on_push
        self._on_lost = on_lost
        self._links: dict[Endpoint, Link] = {}
        self._opening: dict[Endpoint, trio.Event] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Owns the connections' tasks, so it lives above all callers."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                task_status.started()
                while True:
                    await self._directory.changed()
                    self._close_strangers()
        finally:
            self._nursery = None

    @property
    def round_trip(self) -> float:
        """Seconds that the last timed call took on the slowest of this lane's connections."""
        return max((link.last_round_trip for link in self._links.values()), default=0.0)

    async def link(self, endpoint: Endpoint) -> Link:
        """The open connection to this server; concurrent callers share one attempt to open it."""
        while True:
            link = self._links.get(endpoint)
            if link is not None and link.usable:
                return link
            opening = self._opening.get(endpoint)
            if opening is not None:
                await opening.wait()
                link = self._links.get(endpoint)
                if link is None or not link.usable:
                    raise LinkLost(f"cannot connect to {endpoint}")
                return link
            return await self._open(endpoint)

    async def call(self, slot: int, *command: bytes | str | int | float) -> Reply:
        return (await self.gather([(slot, command)]))[0]

    async def script(
        self,
        slot: int,
        script: Script,
        keys: Sequence[bytes],
        args: Sequence[bytes | str | int],
        *,
        repeatable: bool = False,
    ) -> Reply:
        """Run a script; unless it is repeatable, OutcomeUnknown is raised where it may have run without telling us."""
        [reply] = await self._gather([(slot, script.command(keys, args))], once=not repeatable)
        return reply

    async def script_and_link(
        self, slot: int, script: Script, keys: Sequence[bytes], args: Sequence[bytes | str | int]
    ) -> tuple[Reply, Link]:
        """As `script`, with the connection that it ran on: what replicas have is asked there."""
        links: list[Link] = []
        [reply] = await self._gather([(slot, script.command(keys, args))], once=True, links=links)
        return reply, links[-1]

    async def gather(self, requests: Sequence[Request], *, refusals: bool = False) -> list[Reply]:
        """All replies in order, each server's part in one pipeline.

        A refusal of one command is raised, or with `refusals` stands as a StoreError among the replies.
        """
        return await self._gather(requests, refusals=refusals)

    async def gather_available(self, requests: Sequence[Request], *, limit: float) -> list[Reply]:
        """As `gather`, each server's part by itself: what one of them has not answered in `limit` seconds is an error.

        For who can do with a part of it. Errors stand as StoreError among the replies.
        """
        replies: list[Reply] = [StoreUnavailable(f"A part of the store has not answered in {limit:g} s.")] * len(
            requests
        )
        parts: dict[Endpoint | None, list[int]] = {}
        for index, (slot, _) in enumerate(requests):
            parts.setdefault(self._directory.owner(slot), []).append(index)

        async def gather_part(indices: list[int]) -> None:
            found: list[Reply]
            with trio.move_on_after(limit):
                try:
                    found = await self.gather([requests[index] for index in indices], refusals=True)
                except StoreError as error:
                    found = [error] * len(indices)
                for index, reply in zip(indices, found, strict=True):
                    replies[index] = reply

        async with trio.open_nursery() as nursery:
            for indices in parts.values():
                nursery.start_soon(gather_part, indices)
        return replies

    async def _gather(
        self,
        requests: Sequence[Request],
        *,
        once: bool = False,
        refusals: bool = False,
        links: list[Link] | None = None,
    ) -> list[Reply]:
        if self.barred is not None and not all(command[0] in _READS for _, command in requests):
            raise type(self.barred)(str(self.barred))
        replies: list[Reply] = [None] * len(requests)
        todo: Sequence[int] = range(len(requests))
        give_up_at = trio.current_time() + self._timeouts.patience
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        rerouted_before = False
        while True:
            attempt = _Attempt(self, requests, replies, refusals)
            await attempt.run(todo)
            if links is not None:
                links += attempt.links
            if attempt.failure is not None:
                raise attempt.failure
            if attempt.interrupted and once:
                raise OutcomeUnknown(
                    f"The store does not answer now ({attempt.reason}): look whether it happened, then try again."
                )
            if not attempt.again:
                return replies
            if trio.current_time() >= give_up_at:
                raise StoreUnavailable(
                    f"The store does not serve this now ({attempt.reason}): see that it runs, then try again."
                )
            todo = attempt.again
            self.counters.retries += 1
            # A redirect that taught us the way costs no pause; two in a row, or anything else, may last.
            if rerouted_before or not attempt.rerouted:
                await trio.sleep(backoff.next())
                try:
                    await self._directory.refresh()
                except StoreError as error:
                    log.debug("lane %s: %s", self.name, error)
            rerouted_before = attempt.rerouted

    async def _open(self, endpoint: Endpoint) -> Link:
        opened = self._opening[endpoint] = trio.Event()
        try:
            if self._nursery is None:
                raise LinkLost(f"the {self.name} lane is not running")
            with trio.move_on_after(self._timeouts.connect * 2):
                link = await Link.open(
                    self._directory.url,
                    endpoint,
                    connect_timeout=self._timeouts.connect,
                    timeout=self._timeouts.silence,
                    on_push=self._on_push,
                )
                if self._nursery is None:
                    link.close()
                    raise LinkLost(f"the {self.name} lane has ended")
                # Ahead of everything else, so that a burst on a new connection does not meet NOSCRIPT a thousand times.
                link.cast([("SCRIPT", "LOAD", script.source) for script in self._scripts])
                self._links[endpoint] = link
                self.counters.opened += 1
                self._nursery.start_soon(self._drive, link)
                return link
            raise LinkLost(f"{endpoint} does not accept a connection")
        except (AuthenticationError, NoPermissionError) as error:
            raise StoreDenied(f"{endpoint} refuses the credentials of the store URL: {error}") from None
        except (RedisError, OSError, ValueError) as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise StoreDenied(f"{endpoint} shows a certificate that is not trusted: {error}") from None
            raise LinkLost(f"cannot connect to {endpoint}: {error}") from None
        finally:
            del self._opening[endpoint]
            opened.set()

    def _close_strangers(self) -> None:
        """Connections to servers that are no primaries any more have nothing left to do."""
        primaries = self._directory.primaries()
        for endpoint in [endpoint for endpoint in self._links if endpoint not in primaries]:
            self._links[endpoint].close()

    async def _drive(self, link: Link) -> None:
        try:
            await link.run()
        except Exception:
            # A fault in what listens to pushes must not end the other connections of the lane.
            log.exception("lane %s: the connection to %s failed", self.name, link.endpoint)
        finally:
            self.counters.lost += 1
            if self._links.get(link.endpoint) is link:
                del self._links[link.endpoint]
            if self._on_lost is not None:
                self._on_lost(link)


class _Attempt:
    """One try at a set of requests: fills replies, and collects what is to be tried again."""

    def __init__(self, lane: Lane, requests: Sequence[Request], replies: list[Reply], refusals: bool) -> None:
        self.lane = lane
        self.requests = requests
        self.replies = replies
        self.refusals = refusals
        self.again: list[int] = []
        self.reason = ""
        self.failure: StoreError | None = None
        self.interrupted = False
        self.rerouted = True
        self.links: list[Link] = []  # that something was asked on

    async def run(self, todo: Sequence[int]) -> None:
        groups: dict[Endpoint, list[int]] = {}
        for index in todo:
            owner = self.lane._directory.owner(self.requests[index][0])
            if owner is None:
                self._later(index, "nobody owns the hash slot")
            else:
                groups.setdefault(owner, []).append(index)
        if len(groups) == 1:
            [(endpoint, indexes)] = groups.items()
            await self._ask(endpoint, indexes)
        elif groups:
            async with trio.open_nursery() as nursery:
                for endpoint, indexes in groups.items():
                    nursery.start_soon(self._ask, endpoint, indexes)

    async def _ask(self, endpoint: Endpoint, indexes: Sequence[int]) -> None:
        sent = False
        try:
            link = await self.lane.link(endpoint)
            self.links.append(link)
            sent = True
            replies = await link.execute([self.requests[index][1] for index in indexes])
        except LinkLost as error:
            self.interrupted = self.interrupted or sent
            for index in indexes:
                self._later(index, str(error))
            return
        except StoreError as error:
            self.failure = error
            return
        for index, reply in zip(indexes, replies, strict=True):
            if isinstance(reply, hiredis.ReplyError):
                await self._refused(link, index, str(reply))
            else:
                self.replies[index] = reply

    async def _refused(self, link: Link, index: int, text: str) -> None:
        slot, command = self.requests[index]
        code, _, rest = text.partition(" ")
        if code == "MOVED":
            self.lane.counters.redirects += 1
            self.lane._directory.moved(slot, _redirect_target(rest, link.endpoint))
            self._at_once(index, text)
        elif code == "ASK":
            self.lane.counters.redirects += 1
            await self._ask_once(_redirect_target(rest, link.endpoint), index)
        elif code == "NOSCRIPT":
            await self._load_script(link, index)
        elif code in _TRY_LATER:
            self._later(index, text)
            if code == "READONLY":
                # A demoted primary stays connected: only a new look finds its successor.
                link.close()
        elif code == "OOM":
            self.failure = StoreFull("the store's memory is full: free some or raise its maxmemory, then try again")
        elif code in _DENIED:
            self.failure = StoreDenied(f"{link.endpoint} denies a command: {text}")
        elif code == "MISCONF":
            self.failure = self.lane.trouble.refused(link.endpoint, text)
        else:
            refusal = _refusal(link.endpoint, command, text)
            if self.refusals:
                self.replies[index] = refusal
            else:
                self.failure = refusal

    async def _ask_once(self, endpoint: Endpoint, index: int) -> None:
        """The slot is on its way: this one key is already at the other server."""
        try:
            link = await self.lane.link(endpoint)
            self.links.append(link)
            _, reply = await link.execute([("ASKING",), self.requests[index][1]])
        except LinkLost as error:
            self.interrupted = True
            self._later(index, str(error))
            return
        except StoreError as error:
            self.failure = error
            return
        if not isinstance(reply, hiredis.ReplyError):
            self.replies[index] = reply
        elif str(reply).startswith("NOSCRIPT"):
            await self._load_script(link, index)
        else:
            self._later(index, str(reply))

    async def _load_script(self, link: Link, index: int) -> None:
        try:
            await link.call("SCRIPT", "LOAD", Script.of_command(self.requests[index][1]).source)
        except LinkLost as error:
            self._later(index, str(error))
        else:
            self._at_once(index, "the scripts had to be loaded again")

    def _at_once(self, index: int, reason: str) -> None:
        self.again.append(index)
        self.reason = reason

    def _later(self, index: int, reason: str) -> None:
        self.again.append(index)
        self.reason = reason
        self.rerouted = False


def _refusal(endpoint: Endpoint, command: Command, text: str) -> StoreError:
    """What a server says of a command that it understands, and that does not fit what is there."""
    is_script = command[0] == "EVALSHA"
    named = Script.of_command(command).name if is_script else str(command[0])
    complain(log, "%s refuses %s of %s: %s", endpoint, named, _keys_of(command), text)
    if is_script and "ACL failure" in text:
        return StoreDenied(f"{endpoint} denies a command: {text}")
    # Nothing else makes a script of ours fail: it was tried with what we write.
    if is_script or text.startswith("WRONGTYPE"):
        return RecordDamaged(
            f"What the store has under {_keys_of(command)} is damaged, or not Vela's: restore or remove it."
        )
    return StoreError("The store refused a command; the server's log has more.")


def _keys_of(command: Command) -> str:
    """The keys of a command, the first few of them."""
    match command[0]:
        case "EVALSHA":
            keys = command[3 : 3 + int(command[2])]
        case "XINFO":
            keys = command[2:3]
        case _:
            keys = command[1:2]
    texts = [key.decode(errors="replace") if isinstance(key, bytes) else str(key) for key in keys]
    return ", ".join(texts[:_KEYS_TOLD]) + (" ..." if len(texts) > _KEYS_TOLD else "")


def _redirect_target(rest: str, asked: Endpoint) -> Endpoint:
    """The server named by `MOVED slot host:port` or `ASK slot host:port`."""
    host, _, port = rest.split(" ")[1].rpartition(":")
    return named_by_server(host, int(port), asked)
