"""What the OpenAPI document says beyond what the framework can tell from a handler's signature.

Query parameters and bodies are read by hand, because their refusals are ours, so they are also described by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litestar.datastructures import ResponseHeader
from litestar.openapi import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIType, Operation, Parameter, RequestBody, Schema

from gateway.http.schemas import Reason
from segments.schema_policies import AutoUpdate, Strategy

ETAG = ResponseHeader(name="ETag", description="The version of the record.", documentation_only=True)
INTEGER = Schema(type=OpenAPIType.INTEGER, minimum=1)
SWITCH = Schema(type=OpenAPIType.BOOLEAN, default=False)
MOMENT = Schema(type=OpenAPIType.INTEGER, minimum=0)
STRING = Schema(type=OpenAPIType.STRING)
STRING_MAP = Schema(type=OpenAPIType.OBJECT, additional_properties=STRING)
ANY_MAP = Schema(type=OpenAPIType.OBJECT)
STRINGS = Schema(type=OpenAPIType.ARRAY, items=STRING)
RETENTION = Schema(
    type=OpenAPIType.OBJECT,
    properties={
        "retentionTimeInMinutes": Schema(type=OpenAPIType.INTEGER, minimum=-1),
        "retentionSizeInMB": Schema(type=OpenAPIType.INTEGER, minimum=-1, default=-1),
    },
    required=["retentionTimeInMinutes"],
)
SCHEMA_PAYLOAD = Schema(
    type=OpenAPIType.OBJECT,
    properties={"type": STRING, "schema": STRING, "properties": STRING_MAP},
    required=["type"],
)
STRATEGY = Schema(type=OpenAPIType.STRING, enum=[strategy.value for strategy in Strategy])
AUTO_UPDATE = Schema(type=OpenAPIType.STRING, enum=[older.value for older in AutoUpdate])
YES_OR_NO = Schema(type=OpenAPIType.BOOLEAN)

TIMESTAMP = Parameter(
    name="timestamp",
    param_in="query",
    schema=MOMENT,
    description="Milliseconds since 1970; what was published then or later is consumed.",
    required=True,
)
IF_MATCH = Parameter(
    name="If-Match",
    param_in="header",
    schema=STRING,
    description="The ETag that the change is meant for; without it, a change that came between is no obstacle.",
    required=False,
)

_REFUSALS = {
    307: "Another node leads the topic; Location is the same request there.",
    400: "The request is malformed.",
    404: "It does not exist.",
    409: "It exists already or as something else, is not empty or still in use, or was changed meanwhile.",
    412: "A name, a parameter, a limit or a precondition stands in the way.",
    422: "What was sent as a schema is none.",
    503: "The store is out of reach, the lead of the topic is changing, or the node is overloaded.",
    507: "The store is full.",
}


def leader_refusals(*statuses: int) -> dict[int, ResponseSpec]:
    """Those of an operation that only the leader of the topic carries out."""
    return refusals(307, *statuses)


def refusals(*statuses: int) -> dict[int, ResponseSpec]:
    """The answers that an operation may give instead of its own; 400 and 503 any of them."""
    return {status: answer(Reason, _REFUSALS[status]) for status in sorted({400, 503, *statuses})}


def answer(schema: type, description: str) -> ResponseSpec:
    return ResponseSpec(schema, description=description, generate_examples=False)


def query(name: str, schema: Schema, description: str, *, required: bool = False) -> Parameter:
    return Parameter(name=name, param_in="query", schema=schema, description=description, required=required)


def described(
    *, parameters: Sequence[Parameter] = (), body: Schema | None = None, body_required: bool = False
) -> type[Operation]:
    """An operation with these query parameters and a JSON body of this shape."""

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            self.parameters = [*(self.parameters or ()), *parameters]
            if body is not None:
                media = {"application/json": OpenAPIMediaType(schema=body)}
                self.request_body = RequestBody(content=media, required=body_required)

    return Described
