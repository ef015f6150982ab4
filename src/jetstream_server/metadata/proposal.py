"""One command of this process, proposed once or again, always under its first id.

An outcome that is not known stays unknown for as long as a copy of the command may be on its way:
whoever cannot live with that proposes the very same command again (replication/isr.py). A second
command with the same fields would be another one: both could apply.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from jetstream_protocol.errors import UnknownOutcomeError
from jetstream_server.metadata.registry import check_result

PATIENCE_SECONDS = 5.0
"""How long a proposal waits by default: an election takes about one, two in a row are rare."""


class Proposal:
    """Made by `MetadataLog.prepare`.

    text: the command with its id, as it was first proposed; "" before. term: of a controller's
    decision, the term it was made in; it enters the log in that term or not at all. is_void: no
    copy of it can take effect any more, although one may have: this process has proposed so much
    since that the group has forgotten the id. Whatever one did is applied here by then.
    """

    def __init__(
        self,
        command: dict[str, Any],
        submit: Callable[[Proposal, float], Awaitable[str]],
        term: int | None = None,
    ) -> None:
        self.text = ""
        self.term = term
        self.is_void = False
        self._command = command
        self._submit = submit

    def number(self, incarnation: int | str, sequence: int) -> None:
        """Give the command its id, once and for all."""
        assert not self.text, "a command has one id"
        command = {**self._command, "id": [incarnation, sequence]}
        self.text = json.dumps(command, separators=(",", ":"))

    async def submit(self, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The result of the command, by whichever copy it applied. Raises as
        `MetadataLog.propose`; may be called again then, but not before it has ended."""
        result = json.loads(await self._submit(self, patience))
        try:
            return check_result(result)
        except UnknownOutcomeError:
            # Said by the log itself (results.py): every later copy gets the same answer.
            self.is_void = True
            raise
