"""What keeps pages of strangers, open in the browser of somebody who reaches this port, from using the admin API.

A page may send requests anywhere, and its host's name may come to mean our address (DNS rebinding), which makes our
answers its own. So the Host has to be a name of ours, the Origin one as well, and a body has to be called JSON, which a
browser asks about first. Programs send no Origin and are not concerned.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from litestar.types import HTTPScope

from gateway.host_names import address_of, host_of_authority, parse_host
from gateway.http.refusals import ForeignOrigin, NotJson, UnknownHost
from gateway.setting_kinds import ANY_HOST

# Of these nothing changes by a request; the browser shows the answer to no other site.
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class AdminHosts:
    """The names under which the admin API is asked for, beside those of the loopback and plain addresses."""

    names: frozenset[str] = frozenset({"localhost"})
    any_host: bool = False

    @classmethod
    def of(cls, hosts: Iterable[str]) -> Self:
        names = frozenset(hosts)
        return cls(names | {"localhost"}, ANY_HOST in names)

    def check(self, scope: HTTPScope, body: bytes) -> None:
        """Raises a RequestError for what a page of a stranger might have sent."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not self.any_host:
            host = self._check_host(headers.get(b"host"))
            self._check_origin(headers, host, reading=scope["method"] in _READING)
        if scope["method"] not in _READING and body.strip():
            _check_type(headers.get(b"content-type", ""))

    def _check_host(self, given: str | None) -> str | None:
        """The host that was asked for. Only HTTP/1.0 may leave it out, which no browser speaks."""
        if given is None:
            return None
        try:
            host = host_of_authority(given)
        except ValueError:
            host = ""
        # Whoever came by an address was not led here by a name that means something else now.
        if host not in self.names and (not host or address_of(host) is None):
            raise UnknownHost(
                f"This server is not known as {_shown(given)}: ask for it by its address or by a name of its own, or "
                "add this one to its admin_hosts (--admin-hosts)."
            )
        return host

    def _check_origin(self, headers: dict[bytes, str], host: str | None, *, reading: bool) -> None:
        origin = headers.get(b"origin")
        if origin is None:
            # Browsers tell the origin of all that changes something; this is for one that does not.
            foreign = not reading and headers.get(b"sec-fetch-site", "").strip().lower() == "cross-site"
        else:
            foreign = not self._is_ours(origin, host)
        if foreign:
            # A page that hides where it comes from says "null".
            shown = "another site" if origin is None or origin == "null" else _shown(origin)
            raise ForeignOrigin(
                f"Requests of pages from {shown} are refused: add its host to admin_hosts (--admin-hosts) of this "
                "server if they may use the admin API."
            )

    def _is_ours(self, origin: str, host: str | None) -> bool:
        try:
            name = parse_host(urlsplit(origin.strip()).hostname or "")
        except ValueError:
            return False
        if name == host or name in self.names:
            return True
        # An address tells nothing here: a page may come from any, but for those of this machine.
        address = address_of(name)
        return address is not None and address.is_loopback


def _check_type(given: str) -> None:
    media_type = given.partition(";")[0].strip().lower()
    is_json = media_type == "application/json"
    if not is_json and not (media_type.startswith("application/") and media_type.endswith("+json")):
        raise NotJson(
            f"The body is called {_shown(given)}: send JSON, with the header Content-Type: application/json."
            if media_type
            else "The body has no content type: send JSON, with the header Content-Type: application/json."
        )


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 80 else text[:80] + "...")
