"""What a bucket lists of a namespace, as it stands in the store."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from metadata.complaints import complain
from protocol.errors import InvalidName
from protocol.names import NamespaceName, TopicName

log = logging.getLogger(__name__)

# Lines of names that need no closer look: all at once they take a fraction of the time, which counts in long listings.
_ORDINARY: Final = re.compile(rb"[-.\w]{1,512}(?:\n[-.\w]{1,512})*+", re.ASCII)


def index_entries(
    bucket: int, namespace: NamespaceName, found: Mapping[bytes, bytes], *, classic: bool = False
) -> dict[str, str]:
    """The entries of an index, of `classic` topics or of scalable ones; what is no name of such hides only itself."""
    names, incarnations = b"\n".join(found.keys()), b"\n".join(found.values())
    if _ORDINARY.fullmatch(names) and incarnations.isascii() and incarnations.count(b"\n") == len(found) - 1:
        return dict(zip(names.decode().split("\n"), incarnations.decode().split("\n"), strict=True))
    entries = {}
    for name, incarnation in found.items():
        try:
            local = name.decode()
            _check(namespace, local, classic)
            entries[local] = incarnation.decode()
        except (UnicodeDecodeError, InvalidName):
            complain(
                log, "the index of %s in bucket %d has an entry that is no topic: %r", namespace, bucket, name[:64]
            )
    return entries


def _check(namespace: NamespaceName, local: str, classic: bool) -> None:
    """Raise InvalidName unless a topic can be called so, and the topic whose partition it is."""
    if classic:
        _ = TopicName.classic(namespace.tenant, namespace.namespace, local).base
    else:
        TopicName.scalable(namespace.tenant, namespace.namespace, local)
