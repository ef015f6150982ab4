"""The outcome of deciding one command: what to answer, and what to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jetstream_server.metadata.changes import Change
from jetstream_server.metadata.fields import Fields
from jetstream_server.metadata.tables import Tables


@dataclass(frozen=True, slots=True)
class Decision:
    """`result` goes to the proposer, as JSON; `changes` are committed, then shown to watchers."""

    result: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()


Decide = Callable[[Tables, Fields, int], Decision]
"""Decides a command at a revision. Changes nothing; raises a JetstreamError to refuse."""
