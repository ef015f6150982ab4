"""The commands of this process. Each may be proposed several times, always under the same id.

An outcome stays unknown while a copy of the command may be in flight. Callers that need the outcome
propose the same command again (replication/core/isr_change.py). A second command with equal
fields would be a different one: both could be applied.

This module numbers the ids, within bounds that let every retry find its result (results.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from jetstream_protocol.errors import UnknownOutcomeError
from jetstream_server.metadata.state.command_json import Command, encode_command
from jetstream_server.metadata.state.registry import check_result
from jetstream_server.metadata.state.results import SPAN

PATIENCE_SECONDS = 5.0
"""How long a proposal waits by default. An election takes about one; two in a row are rare."""


class Proposal:
    """A command and its id, until its outcome is known. Made by `RaftMetadataLog.prepare`.

    text: the command with its id, as it was first proposed; "" before. term: for a controller's
    decision, the term in which it was made; it enters the log in that term or not at all.
    controller_epoch: the claim under which it was made (registry.py). is_void: no copy of it can
    take effect any more, although one may have: this process has proposed so much since that the
    group has forgotten the id. The effect of such a copy is applied here by then.
    """

    def __init__(
        self,
        command: Command,
        submit: Callable[[Proposal, float], Awaitable[dict[str, Any]]],
        term: int | None = None,
        controller_epoch: int | None = None,
    ) -> None:
        self.text = ""
        self.term = term
        self.is_void = False
        self._command = command
        self._controller_epoch = controller_epoch
        self._submit = submit

    def number(self, incarnation: int | str, sequence: int) -> None:
        """Give the command its id."""
        assert not self.text, "a command has one id"
        self.text = encode_command(
            self._command,
            controller_epoch=self._controller_epoch,
            command_id=(incarnation, sequence),
        )

    async def submit(self, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Propose the command, and return its result, whichever copy was applied. Raises the errors
        of `RaftMetadataLog.propose`. May be called again after it has ended."""
        result = await self._submit(self, patience)
        try:
            return check_result(result)
        except UnknownOutcomeError:
            # This is the answer of the log itself (results.py): every later copy gets the same.
            self.is_void = True
            raise


class Sequences:
    """Numbers commands so that no pending one is SPAN or more behind the newest (results.py)."""

    def __init__(self) -> None:
        self._next = 0
        self._open: dict[int, None] = {}
        self._waiting: deque[asyncio.Future[int]] = deque()

    async def take(self) -> int:
        if self._has_room() and not self._waiting:
            return self._number()
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result())
            raise

    def give_back(self, sequence: int) -> None:
        del self._open[sequence]
        while self._waiting and self._has_room():
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(self._number())

    def _has_room(self) -> bool:
        return not self._open or self._next - next(iter(self._open)) < SPAN

    def _number(self) -> int:
        sequence = self._next
        self._next += 1
        self._open[sequence] = None
        return sequence
