"""What a namespace says about the schemas of its topics, with the names that Pulsar gives these policies."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from metadata.stored_values import UNREADABLE


class Strategy(StrEnum):
    """How a new version of a schema must fit the ones before."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all versions before count, and not the last one only."""
        return self.endswith("_TRANSITIVE")

    @property
    def reads_old(self) -> bool:
        """Whether what old versions wrote must be readable with the new one."""
        return self.startswith(("BACKWARD", "FULL"))

    @property
    def is_read_by_old(self) -> bool:
        """Whether what the new version writes must be readable with old ones."""
        return self.startswith(("FORWARD", "FULL"))

    def for_consumers(self) -> Strategy:
        """What a consumer's schema must do: it only reads."""
        if self in (Strategy.ALWAYS_COMPATIBLE, Strategy.ALWAYS_INCOMPATIBLE):
            return self
        reads_all = self in (Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE)
        return Strategy.BACKWARD_TRANSITIVE if reads_all else Strategy.BACKWARD


class AutoUpdate(StrEnum):
    """The same choice as older tools of Pulsar set it."""

    DISABLED = "AutoUpdateDisabled"
    BACKWARD = "Backward"
    FORWARD = "Forward"
    FULL = "Full"
    ALWAYS_COMPATIBLE = "AlwaysCompatible"
    BACKWARD_TRANSITIVE = "BackwardTransitive"
    FORWARD_TRANSITIVE = "ForwardTransitive"
    FULL_TRANSITIVE = "FullTransitive"

    @property
    def strategy(self) -> Strategy:
        return Strategy.ALWAYS_INCOMPATIBLE if self is AutoUpdate.DISABLED else Strategy[self.name]


DEFAULT_STRATEGY: Final = Strategy.FULL


class SchemaPolicies(msgspec.Struct, frozen=True):
    """The part of a namespace's policies that is about schemas."""

    schema_compatibility_strategy: Strategy | None = None
    schema_auto_update_compatibility_strategy: AutoUpdate | None = None
    is_allow_auto_update_schema: bool | None = None
    schema_validation_enforced: bool | None = None

    @property
    def strategy(self) -> Strategy:
        chosen = self.schema_compatibility_strategy
        if chosen is not None and chosen is not Strategy.UNDEFINED:
            return chosen
        older = self.schema_auto_update_compatibility_strategy
        return DEFAULT_STRATEGY if older is None else older.strategy

    @property
    def producers_may_update(self) -> bool:
        return self.is_allow_auto_update_schema is not False

    @property
    def producers_need_schema(self) -> bool:
        """Whether plain bytes are refused where a topic has a schema."""
        return self.schema_validation_enforced is True


def policies_of(stored: bytes | None) -> SchemaPolicies:
    """From what is stored of a namespace; what nobody can read says nothing, and the defaults are strict."""
    try:
        return msgspec.json.decode(stored or b"{}", type=SchemaPolicies)
    except UNREADABLE:
        return SchemaPolicies()
