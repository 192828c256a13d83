"""Store URLs: which servers to ask, how to log in, and what stands behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from metadata.errors import BadStoreUrl

FORMS = (
    "redis://[user:password@]host:port/db, rediss://…, unix:///path/to/socket?db=0, "
    "redis+sentinel://host:port,host:port/name[/db] or redis+cluster://host:port,host:port"
)
_DEFAULT_PORT = {"redis": 6379, "sentinel": 26379, "cluster": 6379}
# Passed on to redis-py as they are; anything else in the query is refused, so that a typo is not silent.
_OPTIONS = frozenset(
    (
        "db",
        "ssl_ca_certs",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_cert_reqs",
        "ssl_check_hostname",
        "client_name",
    )
)


class Kind(Enum):
    SINGLE = "single"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server: host and port, or the path of a unix socket (then port is 0)."""

    host: str
    port: int

    def __str__(self) -> str:
        if not self.port:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def named_by_server(host: str, port: int, asked: Endpoint) -> Endpoint:
    """The server that a cluster node names; where it gives no host it means the address that it was asked at."""
    return Endpoint(host if host and host != "?" else asked.host, port)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    kind: Kind
    endpoints: tuple[Endpoint, ...]
    tls: bool = False
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        parts = _split(text)
        scheme, _, flavour = parts.scheme.partition("+")
        if scheme == "unix" and not flavour:
            return _unix(text)
        if scheme not in ("redis", "rediss") or flavour not in ("", "sentinel", "cluster"):
            raise BadStoreUrl(f"the store URL scheme {parts.scheme!r} is unknown: use {FORMS}")
        login, _, hosts = parts.netloc.rpartition("@")
        username, _, password = login.partition(":")
        path = [unquote(part) for part in parts.path.split("/")[1:] if part]
        options = _query(parts.query)
        if scheme == "redis" and any(name.startswith("ssl_") for name in options):
            raise BadStoreUrl("the store URL has ssl_ options but no TLS: use rediss:// instead of redis://")
        service = ""
        if flavour == "sentinel":
            if not path:
                raise BadStoreUrl("a redis+sentinel:// URL ends with the name of the primary: …/mymaster")
            service, *path = path
        if len(path) > 1:
            raise BadStoreUrl(f"the store URL has more path than a database number: use {FORMS}")
        db = _database(options.pop("db", path[0] if path else "0"))
        if flavour == "cluster" and db:
            raise BadStoreUrl("a cluster has only database 0: remove the number from the store URL")
        return cls(
            kind=Kind(flavour) if flavour else Kind.SINGLE,
            endpoints=_endpoints(hosts, _DEFAULT_PORT[flavour or "redis"], many=bool(flavour)),
            tls=scheme == "rediss",
            service=service,
            db=db,
            username=unquote(username) or None,
            password=unquote(password) or None,
            options=options,
        )

    def __str__(self) -> str:
        """The URL without its password: what may be shown and logged."""
        if self.endpoints[0].port == 0:
            return f"unix://{self.endpoints[0].host}?db={self.db}"
        scheme = ("rediss" if self.tls else "redis") + ("" if self.kind is Kind.SINGLE else f"+{self.kind.value}")
        login = f"{quote(self.username or '')}{':***' if self.password else ''}"
        path = f"/{quote(self.service)}" if self.service else ""
        hosts = ",".join(str(endpoint) for endpoint in self.endpoints)
        return f"{scheme}://{login + '@' if login else ''}{hosts}{path}{f'/{self.db}' if self.db else ''}"

    def client_options(self, connect_timeout: float) -> dict[str, Any]:
        """What every connection needs, to a store or to a Sentinel. No retries: redis-py would resend writes."""
        options: dict[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": connect_timeout,
            "socket_connect_timeout": connect_timeout,
            **self.options,
        }
        if "ssl_check_hostname" in options:
            options["ssl_check_hostname"] = options["ssl_check_hostname"].lower() in ("true", "yes", "1")
        return options

    def connection(self, endpoint: Endpoint, *, connect_timeout: float) -> Any:
        """An unopened redis-py connection."""
        kwargs = {
            "db": self.db,
            "username": self.username,
            "password": self.password,
            "protocol": 3,
            # A feature of one vendor's servers that would only cost a round trip and send pushes nobody expects.
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
            **self.client_options(connect_timeout),
        }
        if endpoint.port == 0:
            pool = redis.ConnectionPool(connection_class=redis.UnixDomainSocketConnection, path=endpoint.host, **kwargs)
        else:
            pool = redis.ConnectionPool(
                connection_class=redis.SSLConnection if self.tls else redis.Connection,
                host=endpoint.host,
                port=endpoint.port,
                **kwargs,
            )
        return pool.make_connection()


def _split(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise BadStoreUrl(f"the store URL cannot be read ({error}): use {FORMS}") from None


def _unix(text: str) -> StoreUrl:
    parts = _split(text)
    if not parts.path:
        raise BadStoreUrl("a unix:// store URL names the socket: unix:///path/to/socket?db=0")
    options = _query(parts.query)
    db = _database(options.pop("db", "0"))
    return StoreUrl(
        kind=Kind.SINGLE,
        endpoints=(Endpoint(unquote(parts.path), 0),),
        db=db,
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        options=options,
    )


def _query(text: str) -> dict[str, str]:
    options = dict(parse_qsl(text))
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise BadStoreUrl(f"the store URL option {unknown[0]!r} is unknown: use one of {', '.join(sorted(_OPTIONS))}")
    return options


def _database(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5:
        raise BadStoreUrl(f"the database number {text!r} of the store URL is not a number")
    return int(text)


def _endpoints(hosts: str, default_port: int, *, many: bool) -> tuple[Endpoint, ...]:
    found = []
    for host in hosts.split(",") if many else [hosts]:
        try:
            split = urlsplit(f"//{host}")
            name, port = split.hostname, split.port
        except ValueError as error:
            raise BadStoreUrl(f"the store URL names no usable host and port: {error}") from None
        found.append(Endpoint(name or "127.0.0.1", port or default_port))
    return tuple(found)
