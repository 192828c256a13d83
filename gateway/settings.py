"""Every setting of the server, one row each, and where its value came from.

A row is all there is to a setting: flag, environment variable, TOML key, parsing, error text, help and the
page in the documentation all follow from it. Flags beat the environment, that the file, that the default.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gateway import setting_kinds as kinds
from gateway.quantities import HostPort
from gateway.setting_kinds import EMBEDDED, Kind

CONFIG_VARIABLE = "VELA_CONFIG"
# Belong to the client-side commands, so they are no typing mistakes in a server's environment.
CLIENT_VARIABLES = frozenset({"VELA_ADMIN_URL", "VELA_SERVICE_URL"})

# A refusal stays one readable line, whatever was put into a variable.
_LONGEST_QUOTE = 100


class SettingsError(Exception):
    """A setting that cannot be used; the text names it, where it came from and what is allowed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    kind: Kind
    default: str | None
    unset: str
    help: str
    panel: str
    also: str  # a shorter word for the flag, if any

    @property
    def is_switch(self) -> bool:
        return self.kind.toml_type is bool

    @property
    def flag(self) -> str:
        """The flag that changes the default: for a switch that is on, the one that turns it off."""
        word = self.name.replace("_", "-")
        return f"--no-{word}" if self.is_switch and self.default == "true" else f"--{word}"

    @property
    def variable(self) -> str:
        return f"VELA_{self.name.upper()}"

    @property
    def default_text(self) -> str:
        return self.unset if self.default is None else self.default

    def show(self, value: Any) -> str:
        return self.unset if value is None else self.kind.conceal(self.kind.show(value))

    def parse(self, text: str, origin: str) -> Any:
        try:
            return self.kind.parse(text.strip())
        except ValueError:
            raise self.refusal(self.kind.conceal(text), origin) from None

    def parse_toml(self, value: object, origin: str) -> Any:
        # By exact type: TOML's true is no number, and a number is no duration.
        if type(value) is str:
            return self.parse(value, origin)
        if type(value) is bool and self.is_switch:
            return value
        if type(value) is int and self.kind.toml_type is int:
            return self.parse(str(value), origin)
        if type(value) is list and self.kind.toml_type is list and all(type(part) is str for part in value):
            return self.parse(",".join(value), origin)
        raise self.refusal(self.kind.conceal(str(value)), origin)

    def refusal(self, shown: str, origin: str) -> SettingsError:
        text = shown if len(shown) <= _LONGEST_QUOTE else f"{shown[:_LONGEST_QUOTE]}…"
        quoted = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
        return SettingsError(f'{self.name} cannot be "{quoted}" (from {origin}): give {self.kind.allowed}.')


# Called in the class body, and so once: the values are immutable, which is what RUF009 asks about.
def _row(kind: Kind, default: str | None, panel: str, text: str, *, unset: str = "", also: str = "") -> Any:
    value = None if default is None else kind.parse(default)
    return field(default=value, metadata={"row": (kind, default, unset, text, panel, also)})


ADDRESSES, STORAGE, CONNECTIONS, LIMITS, LOGGING = "Addresses", "Store", "Connections", "Limits", "Logging"
CONTROLLER, RECORDING, DATA = "Controller", "Recording", "Messages"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The server's settings; durations are seconds, sizes are bytes."""

    listen: HostPort = _row(  # noqa: RUF009
        kinds.ADDRESS, "127.0.0.1:6650", ADDRESSES, "Where the binary protocol listens."
    )
    http: HostPort = _row(  # noqa: RUF009
        kinds.ADDRESS, "127.0.0.1:8080", ADDRESSES, "Where the admin API, health and metrics listen."
    )
    advertise: str | None = _row(
        kinds.url("pulsar", "pulsar+ssl"),
        None,
        ADDRESSES,
        "The URL that clients are told to connect to; set it behind a proxy or on a wildcard address.",
        unset="derived from listen",
    )
    advertise_http: str | None = _row(
        kinds.url("http", "https"),
        None,
        ADDRESSES,
        "The URL under which others reach this node's admin API.",
        unset="derived from http",
    )
    admin_hosts: tuple[str, ...] | None = _row(
        kinds.HOSTS,
        None,
        ADDRESSES,
        "Further names under which the admin API may be asked for, and whose pages may use it; * lets pages of any site"
        " use it that is open in the browser of somebody who reaches it.",
        unset="addresses, localhost, and the hosts of http, advertise_http and this machine",
    )

    store: str = _row(
        kinds.STORE,
        EMBEDDED,
        STORAGE,
        "The Redis or Valkey that holds all state; embedded runs a private one in the data directory.",
    )
    data_dir: Path = _row(  # noqa: RUF009
        kinds.DIRECTORY, "./vela-data", STORAGE, "Where the embedded store keeps its files."
    )
    store_timeout: float = _row(
        kinds.duration("10ms", "5m"), "5s", STORAGE, "How long a call to the store may go without an answer."
    )
    store_connect_timeout: float = _row(
        kinds.duration("10ms", "5m"), "3s", STORAGE, "How long a new connection to the store may take."
    )
    probe_interval: float = _row(
        kinds.duration("10ms", "1h"),
        "3s",
        STORAGE,
        "How often the change logs are compared with what was seen, to find a lost notification.",
    )
    session_lease: float = _row(
        kinds.duration("100ms", "10m"),
        "10s",
        STORAGE,
        "How long a node that stopped renewing still counts as alive.",
    )
    change_log_length: int = _row(
        kinds.number(100, 10_000_000),
        "10000",
        STORAGE,
        "How many changes the change log of each bucket keeps.",
    )
    auto_create: bool = _row(
        kinds.SWITCH, "true", STORAGE, "Create missing namespaces and topics when a client asks for them."
    )

    keep_alive: float = _row(
        kinds.duration("50ms", "1h"),
        "30s",
        CONNECTIONS,
        "How often clients are pinged; one that was silent since its last ping is cut.",
    )
    handshake_timeout: float = _row(
        kinds.duration("50ms", "10m"),
        "10s",
        CONNECTIONS,
        "How long a new connection may take to send CONNECT.",
    )
    stall_limit: float = _row(
        kinds.duration("50ms", "1h"),
        "30s",
        CONNECTIONS,
        "How long a client with data waiting for it may accept none of it before it is cut.",
    )
    deletion_notice: float = _row(
        kinds.duration("0ms", "1h"),
        "5s",
        CONNECTIONS,
        "How long a deleted topic may take to come back before its watchers are told that it is gone.",
    )
    coalesce: float = _row(
        kinds.duration("0ms", "1m"),
        "50ms",
        CONNECTIONS,
        "How long changes to a namespace are gathered into one update after the last one; 0 sends each at once.",
    )
    shutdown_grace: float = _row(
        kinds.duration("0ms", "10m"),
        "5s",
        CONNECTIONS,
        "How long open connections may finish when the server stops.",
    )
    drain_delay: float = _row(
        kinds.duration("0ms", "1h"),
        "0ms",
        CONNECTIONS,
        "How long everything goes on after SIGTERM with /readyz at 503, so that load balancers look elsewhere before"
        " the ports close.",
    )
    outbox_limit: int = _row(
        kinds.size("16KB", "1GB"),
        "1MB",
        CONNECTIONS,
        "Bytes of replies that may wait for one client before the server stops reading from it.",
    )
    outbox_total_limit: int = _row(
        kinds.size("1MB", "100GB"),
        "256MB",
        CONNECTIONS,
        "Bytes that may wait for all clients together; at the limit those are cut that hold most for longest.",
    )
    receive_total_limit: int = _row(
        kinds.size("1MB", "100GB"),
        "256MB",
        CONNECTIONS,
        "Bytes of frames that have arrived in part, on all connections together; at the limit those are cut that hold"
        " most for longest.",
    )
    watch_total_limit: int = _row(
        kinds.size("1MB", "100GB"),
        "1GB",
        CONNECTIONS,
        "Bytes that watches and registered consumers of all connections may take together, about; at the limit the"
        " connection is cut whose take most. One may have a quarter of it.",
    )
    http_concurrency: int = _row(
        kinds.number(1, 10_000), "8", CONNECTIONS, "How many admin requests are worked on at the same time."
    )

    consumer_grace: float = _row(
        kinds.duration("0ms", "24h"),
        "1m",
        CONTROLLER,
        "How long a registered consumer that lost its connection keeps its segments.",
    )
    handover: float = _row(
        kinds.duration("0ms", "1h"),
        "20s",
        CONTROLLER,
        "How long a consumer may hold on to a segment that it is not assigned any more; clients wait 30 s for one.",
    )
    retention: float = _row(
        kinds.duration("0ms", "87600h"),
        "0ms",
        CONTROLLER,
        "How long a drained sealed segment is kept, where neither its topic nor its namespace says otherwise; a longer"
        " message_age counts.",
    )
    prune_interval: float = _row(
        kinds.duration("50ms", "24h"),
        "1m",
        CONTROLLER,
        "How often a topic's leader looks for sealed segments that can go; after it an idle topic has no leader.",
    )

    max_connections: int = _row(
        kinds.number(1, 10_000_000),
        "10000",
        LIMITS,
        "Client connections of this node; further ones are refused.",
    )
    max_connections_per_address: int = _row(
        kinds.number(1, 10_000_000), "10000", LIMITS, "Client connections from one address; further ones are refused."
    )
    max_opens_per_second: int = _row(
        kinds.number(1, 10_000_000),
        "10000",
        LIMITS,
        "Watches that one connection may open in a second; a faster client is read more slowly.",
    )
    max_watches_per_connection: int = _row(
        kinds.number(1, 10_000_000), "10000", LIMITS, "Watches that one connection may hold."
    )
    ack_replicas: int = _row(
        kinds.number(0, 16),
        "0",
        DATA,
        "Replicas of the store that must have a message before its producer gets a receipt.",
    )
    tail_memory: int = _row(
        kinds.size("1MB", "64GB"),
        "128MB",
        DATA,
        "Memory for the last messages of all segments, from which consumers that keep up are served.",
    )
    message_age: float = _row(
        kinds.duration("0ms", "87600h"),
        "10m",
        DATA,
        "How long messages stay at least, and segments once they are sealed, also when all subscriptions have consumed"
        " them; a longer retention counts.",
    )
    backlog_quota: int = _row(
        kinds.size("0B", "1000GB"),
        "10GB",
        DATA,
        "Bytes of one segment or classic topic that may wait to be consumed; 0B for any.",
    )
    backlog_policy: str = _row(
        kinds.choice("refuse", "evict"),
        "refuse",
        DATA,
        "Over the quota: refuse producers until consumers have caught up, or evict the oldest messages.",
    )
    rebalance_interval: float = _row(
        kinds.duration("100ms", "1h"),
        "30s",
        DATA,
        "How often a node gives a few segments to the nodes that they belong to, trims, and tells what goes through.",
    )
    max_partitions: int = _row(kinds.number(1, 10_000), "512", LIMITS, "Partitions of one classic topic.")
    max_filters: int = _row(kinds.number(0, 10_000), "64", LIMITS, "Property filters of one namespace watch.")
    max_subscriptions: int = _row(kinds.number(1, 1_000_000), "1000", LIMITS, "Subscriptions of one topic.")
    max_consumers: int = _row(kinds.number(1, 1_000_000), "10000", LIMITS, "Registered consumers of one subscription.")
    max_message_size: int = _row(
        kinds.size("16KB", "1GB"),
        "5MB",
        LIMITS,
        "The largest message, as announced to clients when they connect.",
    )
    max_segments: int = _row(
        kinds.number(1, 65_536), "1024", LIMITS, "Segments of one topic, active and sealed together."
    )
    max_properties: int = _row(kinds.number(0, 100_000), "64", LIMITS, "Properties of one topic.")
    max_property_size: int = _row(
        kinds.size("1B", "1MB"), "1KB", LIMITS, "Bytes of one property, name and value together."
    )
    max_body: int = _row(kinds.size("1KB", "1GB"), "1MB", LIMITS, "Bytes of the body of one admin request.")

    gc_interval: float = _row(
        kinds.duration("100ms", "24h"),
        "1m",
        LIMITS,
        "How often it is asked whether enough cyclic garbage may have gathered to look for it.",
    )

    record: Path | None = _row(  # noqa: RUF009
        kinds.DIRECTORY,
        None,
        RECORDING,
        "Where every change is recorded, in the directory of a new trace or of one to go on with.",
        unset="nothing is recorded",
    )
    record_values: bool = _row(
        kinds.SWITCH, "true", RECORDING, "Record each topic's record with its changes.", also="values"
    )
    record_anonymise: bool = _row(
        kinds.SWITCH,
        "false",
        RECORDING,
        "Record pseudonyms instead of the names of tenants, namespaces, topics and properties.",
        also="anonymise",
    )
    record_anonymise_key: Path | None = _row(  # noqa: RUF009
        kinds.FILE,
        None,
        RECORDING,
        "A secret that makes the pseudonyms: with the same one, a trace can be gone on with.",
        unset="a random one that is not kept",
        also="anonymise-key",
    )
    record_part_size: int = _row(
        kinds.size("64KB", "64GB"), "128MB", RECORDING, "How large a part of the trace gets before the next is begun."
    )
    record_part_time: float = _row(
        kinds.duration("1s", "24h"), "10m", RECORDING, "How long a part of the trace is written to, at the most."
    )

    log_level: str = _row(
        kinds.choice("debug", "info", "warning", "error"),
        "info",
        LOGGING,
        "The least important records that are logged.",
    )
    slow_turn: float = _row(
        kinds.duration("1ms", "1h"),
        "100ms",
        LOGGING,
        "How long one command may keep everybody waiting before the log names it.",
    )
    log_format: str = _row(
        kinds.choice("text", "json"), "text", LOGGING, "Lines for people, or one JSON object per line."
    )

    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def uses_embedded_store(self) -> bool:
        return self.store == EMBEDDED

    def origin(self, name: str) -> str:
        """Where a value came from: `default`, `file …`, `environment VELA_…` or `flag --…`."""
        return self.origins.get(name, "default")

    def shown(self) -> Iterator[tuple[Setting, str, str]]:
        """Every row with its value as text, passwords hidden, and its origin."""
        for row in ROWS:
            yield row, row.show(getattr(self, row.name)), self.origin(row.name)


ROWS = tuple(Setting(column.name, *column.metadata["row"]) for column in fields(Settings) if "row" in column.metadata)


def load(flags: Mapping[str, str | bool | None], environ: Mapping[str, str], config: str | None = None) -> Settings:
    """Put the settings together; `flags` maps names to what was given, None for a flag that was not.

    The file is `config`, else what the environment variable VELA_CONFIG names, else none.
    """
    path = config or environ.get(CONFIG_VARIABLE)
    in_file = _read_file(path) if path else {}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for row in ROWS:
        given = flags.get(row.name)
        if given is not None:
            word = row.name.replace("_", "-")
            origin = f"flag --no-{word}" if given is False else f"flag --{word}"
            values[row.name] = given if isinstance(given, bool) else row.parse(given, origin)
        elif environ.get(row.variable):
            # An empty variable counts as absent: container set-ups pass unset ones through that way.
            origin = f"environment {row.variable}"
            values[row.name] = row.parse(environ[row.variable], origin)
        elif row.name in in_file:
            origin = f"file {path}"
            values[row.name] = row.parse_toml(in_file[row.name], origin)
        else:
            continue
        origins[row.name] = origin
    return Settings(**values, origins=origins)


def unknown_variables(environ: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Variables that look like settings and are none, each with the one that was probably meant.

    They are no error: container platforms add variables of their own for a service that is called vela.
    """
    known = {row.variable for row in ROWS} | CLIENT_VARIABLES | {CONFIG_VARIABLE}
    strange = sorted(name for name in environ if name.startswith("VELA_") and name not in known)
    return [(name, _closest(name, known)) for name in strange]


def _read_file(path: str) -> dict[str, Any]:
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # bad TOML and bad UTF-8 are both ValueErrors
        raise SettingsError(f"The settings file {path} is not valid TOML: {error}.") from None
    names = {row.name for row in ROWS}
    for key in content:
        if key not in names:
            meant = _closest(key, names)
            hint = f"did you mean {meant}?" if meant else f"the keys are {', '.join(sorted(names))}."
            raise SettingsError(f'Unknown key "{key}" in file {path}: {hint}')
    return content


def _closest(name: str, known: set[str]) -> str | None:
    matches = difflib.get_close_matches(name, known, n=1)
    return matches[0] if matches else None
