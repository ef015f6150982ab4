"""What each route of `/v1/` takes and answers.

A parameter of a query that is not described is refused, so what is described is all there is.
openapi.py makes the document for programs from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]
"""Of JSON, as OpenAPI 3.1 has them."""
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One in the query, or a header. example: a value that the route takes."""

    name: str
    meaning: str
    schema: Schema
    example: str
    is_header: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """name: unique, for programs that generate code. summary: one sentence. answers, body: schemas
    by content type. parameters: those of the path are not among them."""

    name: str
    summary: str
    answers: Mapping[str, Schema] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()
    body: Mapping[str, Schema] | None = None
    status: int = 200

    @property
    def query(self) -> list[str]:
        """The names of the parameters in the query."""
        return [each.name for each in self.parameters if not each.is_header]
