"""One policy of a namespace, read or written among all the others, which stay as they are."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.transitions import ATTEMPTS
from gateway.http.ports import AdminPorts
from metadata.errors import NamespaceMissing, RecordDamaged, VersionConflict
from protocol.names import NamespaceName

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def stored_policies(ports: AdminPorts, name: NamespaceName) -> bytes:
    policies = await ports.store.get_namespace(name)
    if policies is None:
        raise NamespaceMissing(f"Namespace does not exist: {name}. Check its name, or create it.")
    return policies


async def write_policy(ports: AdminPorts, name: NamespaceName, field: str, value: object | None) -> None:
    """Put it among the other policies, or take it out; those stay as they are, byte by byte."""
    for _ in range(ATTEMPTS):
        stored = await stored_policies(ports, name)
        try:
            fields: dict[str, Any] = dict(_fields.decode(stored))
        except msgspec.DecodeError as error:
            raise damaged(name, error) from error
        if value is None:
            fields.pop(field, None)
        else:
            fields[field] = value
        try:
            await ports.store.replace_namespace(name, stored, msgspec.json.encode(fields))
            return
        except VersionConflict:
            continue
    raise VersionConflict(f"The policies of {name} were changed by others {ATTEMPTS} times meanwhile: try again.")


def damaged(name: NamespaceName, error: Exception) -> RecordDamaged:
    return RecordDamaged(f"The stored policies of {name} cannot be read ({error}): set them anew.")
