"""One policy of a namespace, read or written among all the others, which stay as they are."""

from __future__ import annotations

from typing import Any

import msgspec

from controller.transitions import ATTEMPTS
from gateway.http.ports import AdminPorts
from metadata import keys
from metadata.errors import NamespaceMissing, RecordDamaged, VersionConflict
from metadata.stored_values import UNREADABLE
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
        fields: dict[str, Any] = fields_of(name, stored)
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


def fields_of(name: NamespaceName, policies: bytes) -> dict[str, Any]:
    """The policies by their names, as they stand there; RecordDamaged where they are none."""
    try:
        # What nobody looks at is answered as it is, so its text is checked here or never.
        policies.decode()
        return dict(_fields.decode(policies))
    except UNREADABLE as error:
        raise damaged(name, error) from error


def damaged(name: NamespaceName, error: Exception) -> RecordDamaged:
    return RecordDamaged(
        f"The policies of {name}, in the key {keys.NAMESPACES.decode()} of the store, cannot be read ({error}): "
        "restore them, or delete the namespace and create it anew."
    )
