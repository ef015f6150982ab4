"""What each route of `/v1/` takes and answers.

A parameter of a query that is not described is refused, so what is described is all there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]


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
    """summary: one sentence. parameters: those of the path are not among them."""

    summary: str
    parameters: tuple[Parameter, ...] = ()

    @property
    def query(self) -> list[str]:
        """The names of the parameters in the query."""
        return [each.name for each in self.parameters if not each.is_header]


TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}


def whole(least: int = 0, most: int | None = None) -> Schema:
    """A whole number."""
    bounds = {"minimum": least} if most is None else {"minimum": least, "maximum": most}
    return {"type": "integer", **bounds}
