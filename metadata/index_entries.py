"""What a bucket lists of a namespace, as it stands in the store."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

from protocol.errors import InvalidName
from protocol.names import NamespaceName, TopicName

log = logging.getLogger(__name__)

# Lines of names that need no closer look: all at once they take a fraction of the time, which counts in long listings.
_ORDINARY: Final = re.compile(rb"[-.\w]{1,512}(?:\n[-.\w]{1,512})*+", re.ASCII)


def index_entries(bucket: int, namespace: NamespaceName, found: Mapping[bytes, bytes]) -> dict[str, str]:
    """The entries of an index; one that no script of ours wrote hides only itself."""
    names, incarnations = b"\n".join(found.keys()), b"\n".join(found.values())
    if _ORDINARY.fullmatch(names) and incarnations.isascii() and incarnations.count(b"\n") == len(found) - 1:
        return dict(zip(names.decode().split("\n"), incarnations.decode().split("\n"), strict=True))
    entries = {}
    for name, incarnation in found.items():
        try:
            local = name.decode()
            TopicName.scalable(namespace.tenant, namespace.namespace, local)
            entries[local] = incarnation.decode()
        except (UnicodeDecodeError, InvalidName):
            log.error("the index of %s in bucket %d has an entry that is no topic: %r", namespace, bucket, name[:64])
    return entries
