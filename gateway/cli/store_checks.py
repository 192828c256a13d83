"""The checks of `vela doctor` that ask the store itself: one list, run against every primary."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import redis
import trio
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, BusyLoadingError, NoPermissionError
from redis.retry import Retry

from gateway.cli.findings import Finding, Status, fail, ok, warn
from metadata.directory import Directory
from metadata.errors import StoreDenied, StoreError
from metadata.keys import CHANGES_PREFIX, bell_key
from metadata.urls import Endpoint, StoreUrl

# Scripts that declare themselves with `#!lua` exist from this version on, in Redis and in Valkey.
OLDEST_VERSION = (7, 0)
_CLOCK_TOLERANCE = 1.0
_BELL_PATIENCE = 2.0
# Left behind only if the doctor dies in between; then the store forgets the probe by itself.
_PROBE_LIFETIME = 60
_MEMORY_ALARM = 0.9


@dataclass(frozen=True, slots=True)
class Primary:
    """One server that takes writes, and the buckets that live on it."""

    client: redis.Redis
    address: str
    db: int
    buckets: tuple[int, ...]
    info: dict[str, Any]


def check_store(url: StoreUrl, patience: float) -> Iterator[Finding]:
    """Every finding about the store behind a URL; just one if it cannot be reached."""
    try:
        started = time.perf_counter()
        with _primaries(url, patience) as primaries:
            elapsed = (time.perf_counter() - started) * 1_000
            count = "one primary" if len(primaries) == 1 else f"{len(primaries)} primaries"
            yield ok("store reachable", f"{url}: {count}, {elapsed:.0f} ms to connect and ask")
            for primary in primaries:
                yield from _check_primary(primary)
    except (redis.RedisError, StoreError) as error:
        yield _unreachable(url, error)


def _check_primary(primary: Primary) -> Iterator[Finding]:
    role = check_role(primary)
    yield role
    if role.status is Status.FAIL:
        return
    for check in CHECKS:
        try:
            yield check(primary)
        except redis.ResponseError as error:
            name = check.__name__.removeprefix("check_")
            yield fail(name, f"{primary.address} refuses the check: {error}", "allow it for the store's user")


def check_version(primary: Primary) -> Finding:
    name = "Valkey" if "valkey_version" in primary.info else "Redis"
    text = str(primary.info.get("valkey_version") or primary.info.get("redis_version") or "")
    found = re.match(r"(\d+)\.(\d+)", text)
    if not found:
        return warn("store version", f"{primary.address} does not say", "make sure it is Redis or Valkey 7.0 or newer")
    if (int(found[1]), int(found[2])) < OLDEST_VERSION:
        return fail("store version", f"{primary.address} is {name} {text}", "upgrade it to 7.0 or newer")
    return ok("store version", f"{primary.address} is {name} {text}")


def check_role(primary: Primary) -> Finding:
    role = str(primary.info.get("role", "unknown"))
    if role != "master":
        return fail(
            "store role",
            f"{primary.address} is a replica and takes no writes",
            "point --store at the primary, or use redis+sentinel:// to follow it",
        )
    return ok("store role", f"{primary.address} is a primary")


def check_policy(primary: Primary) -> Finding:
    policy = str(primary.info.get("maxmemory_policy", "unknown"))
    if policy != "noeviction":
        return fail(
            "eviction policy",
            f"{primary.address} evicts keys ({policy}), which would lose topics; Vela refuses such a store",
            "set maxmemory-policy to noeviction there",
        )
    return ok("eviction policy", f"{primary.address} has noeviction")


def check_memory(primary: Primary) -> Finding:
    used, limit = int(primary.info.get("used_memory", 0)), int(primary.info.get("maxmemory", 0))
    if limit and used > limit * _MEMORY_ALARM:
        return warn(
            "store memory",
            f"{primary.address} uses {used / limit:.0%} of its maxmemory",
            "raise maxmemory; once it is full, new topics are refused",
        )
    return ok("store memory", f"{primary.address} uses {used / (1 << 20):.0f} MB" + ("" if limit else ", no limit"))


def check_persistence(primary: Primary) -> Finding:
    if not int(primary.info.get("aof_enabled", 0)):
        return warn(
            "store persistence",
            f"{primary.address} has no append-only file: a restart loses the last writes, or all of them",
            "set appendonly to yes there",
        )
    return ok("store persistence", f"{primary.address} writes an append-only file")


def check_clock(primary: Primary) -> Finding:
    before = time.time()
    seconds, microseconds = primary.client.time()
    after = time.time()
    # Half the round trip is the best guess of when the store looked at its clock.
    ahead = seconds + microseconds / 1_000_000 - (before + after) / 2
    if abs(ahead) > _CLOCK_TOLERANCE + (after - before):
        return warn(
            "clock",
            f"{primary.address} is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine",
            "synchronise both clocks with NTP",
        )
    return ok("clock", f"{primary.address} is within {max(abs(ahead), 0.001):.3f} s of this machine")


def check_notifications(primary: Primary) -> Finding:
    """By observation: what a setting says and what arrives are different things behind proxies and access rules."""
    if not primary.buckets:
        return ok("notifications", f"{primary.address} holds no bucket, so none are needed")
    key = bell_key(primary.buckets[0]) + f"/{uuid4().hex}".encode()
    channel = f"__keyspace@{primary.db}__:{key.decode()}".encode()
    with primary.client.pubsub() as subscription:  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        # By the server's own pattern: a user may be allowed that and nothing else.
        subscription.psubscribe(f"__keyspace@{primary.db}__:{CHANGES_PREFIX}*")
        # The write must come after the subscription stands, or a push that was never owed would be missed.
        confirmation = subscription.get_message(timeout=_BELL_PATIENCE)
        started = time.perf_counter()
        primary.client.xadd(key, {"probe": "doctor"})
        primary.client.expire(key, _PROBE_LIFETIME)
        try:
            rung = confirmation is not None and _wait_for_bell(subscription, channel, started + _BELL_PATIENCE)
            elapsed = (time.perf_counter() - started) * 1_000
        finally:
            primary.client.unlink(key)
    if not rung:
        return warn(
            "notifications",
            f"{primary.address} did not announce a write within {_BELL_PATIENCE:g} s; changes would be found "
            "only every probe interval",
            "`vela serve` turns them on where CONFIG SET is allowed; elsewhere add Kt to notify-keyspace-events",
        )
    return ok("notifications", f"{primary.address} announced a write after {elapsed:.1f} ms")


CHECKS = (
    check_version,
    check_policy,
    check_memory,
    check_persistence,
    check_clock,
    check_notifications,
)


def _wait_for_bell(subscription: Any, channel: bytes, deadline: float) -> bool:
    while (left := deadline - time.perf_counter()) > 0:
        message = subscription.get_message(timeout=left)
        if message and message["type"] == "pmessage" and message["channel"] == channel:
            return True
    return False


@contextmanager
def _primaries(url: StoreUrl, patience: float) -> Iterator[list[Primary]]:
    directory = Directory(url, connect_timeout=patience)
    trio.run(directory.refresh)
    with ExitStack() as clients:
        found = []
        for endpoint in sorted(directory.primaries(), key=str):
            client = clients.enter_context(closing(_client(url, endpoint, patience)))
            buckets = tuple(sorted(directory.buckets_of(endpoint)))
            found.append(Primary(client, str(endpoint), url.db, buckets, client.info()))
        yield found


def _client(url: StoreUrl, endpoint: Endpoint, patience: float) -> redis.Redis:
    options: dict[str, Any] = dict(url.options)
    if endpoint.port:
        options |= {"host": endpoint.host, "port": endpoint.port, "ssl": url.tls}
    else:
        options |= {"unix_socket_path": endpoint.host}
    return redis.Redis(
        db=url.db,
        username=url.username,
        password=url.password,
        socket_timeout=patience,
        socket_connect_timeout=patience,
        # A doctor reports what happened the first time.
        retry=Retry(NoBackoff(), 0),
        **options,
    )


def _unreachable(url: StoreUrl, error: Exception) -> Finding:
    text = f"{url}: {error}".rstrip(".")
    if isinstance(error, (StoreDenied, AuthenticationError, NoPermissionError)):
        return fail(
            "store reachable", text, "correct the user and password in the store URL, or the rules of that user"
        )
    if isinstance(error, BusyLoadingError):
        return fail("store reachable", text, "wait until it has loaded its data")
    return fail("store reachable", text, "start it, or correct --store (VELA_STORE)")
