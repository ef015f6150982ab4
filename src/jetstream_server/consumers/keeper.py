"""Keeps the state of one durable consumer in `__cursors`, while this node leads its stream.

    changed ─> (a moment later, or at once if somebody waits) ─> one write ─> committed ─> answers

Invariants.
* **safety** Somebody who waits is told only when a state is committed that was taken after the
  change: so every later leader knows it.
* **safety** A write counts only if nobody else has written since (the revision). A leader claims
  each state, with its epoch, before it uses it. So a leader that another one has replaced stores
  nothing more, and tells nobody.
* One write is on its way at a time: however many acknowledgements come meanwhile, the next write
  has all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from traceback import format_exc
from typing import Final, NamedTuple, Protocol

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_server.background import run_in_background
from jetstream_server.consumers.kept import Kept, epoch_of

COALESCE_SECONDS: Final = 0.05
"""So long an acknowledgement that nobody waits for may be unknown to other nodes."""
WAITING_MAX: Final = 20_000
"""Of one consumer: acknowledgements that wait for their answer. More get none."""
_RETRY_SECONDS: Final = 0.3

logger = structlog.get_logger("jetstream.consumers")


class StateWrite(NamedTuple):
    """value: None deletes it. expected_revision: -1: there must be none; None: in any case."""

    key: bytes
    value: bytes | None
    expected_revision: int | None


class State(NamedTuple):
    """A record, or the answer to a write. value: b"": there is none, or it is what was written.
    is_refused: another revision was expected; this is the record as it is."""

    key: bytes
    value: bytes
    revision: int
    is_refused: bool = False


class States(Protocol):
    """The records of durable consumers, whichever node leads `__cursors`."""

    async def load(self, stream_ids: Sequence[int]) -> list[State]:
        """Raises JetstreamError."""

    async def write(self, writes: Sequence[StateWrite]) -> list[State]:
        """Return once they are committed. Raises JetstreamError, also when they may be committed
        later."""


class Keeper:
    """For the loop's thread only. Call `close` once."""

    def __init__(
        self,
        states: States,
        key: bytes,
        revision: int,
        take: Callable[[], Kept],
        fenced: Callable[[], None],
    ) -> None:
        """revision: of the record that this leader has written. take: the state as it is. fenced:
        called when another leader has taken over, or the record was deleted."""
        self._states = states
        self._key = key
        self._revision = revision
        self._take = take
        self._fenced = fenced
        self._waiting: list[Callable[[], None]] = []
        self._wanted, self._urgent = asyncio.Event(), asyncio.Event()
        self._is_closing = False
        self._is_storing = False
        self.is_replaced = False
        """Whether another leader has taken over."""
        self._task = run_in_background(self._run(), "keeping a consumer")

    @property
    def revision(self) -> int:
        """Of the last record that this leader knows to have written."""
        return self._revision

    @property
    def is_settled(self) -> bool:
        """Whether all that has changed is stored."""
        return not (self._wanted.is_set() or self._is_storing)

    def changed(self) -> None:
        """Have the state stored."""
        self._wanted.set()

    def when_stored(self, then: Callable[[], None]) -> None:
        """Have the state stored at once, and `then` called. It is not called if that fails."""
        if len(self._waiting) < WAITING_MAX and not self._is_closing:
            self._waiting.append(then)
            self._wanted.set()
            self._urgent.set()

    def close(self) -> None:
        """Store what has changed, if that is still possible, and nothing more."""
        self._is_closing = True
        self._waiting.clear()
        if self._wanted.is_set():
            self._urgent.set()
        else:
            self._task.cancel()

    def abandon(self) -> None:
        """Store nothing more: it is deleted."""
        self._is_closing = True
        self._waiting.clear()
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            if not self._urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(COALESCE_SECONDS):
                        await self._urgent.wait()
            self._wanted.clear()
            self._urgent.clear()
            waiting, self._waiting = self._waiting, []
            kept = self._take()
            self._is_storing = True
            is_stored = await self._store(kept)
            self._is_storing = False
            if is_stored:
                for then in waiting:
                    then()
            elif is_stored is None:
                self._fenced()
                return
            elif not self._is_closing:
                self._waiting = waiting + self._waiting
                self._wanted.set()
                self._urgent.set()
            if self._is_closing and not self._wanted.is_set():
                return

    async def _store(self, kept: Kept) -> bool | None:
        """Write. Returns whether it is committed; None: see `fenced`."""
        try:
            (state,) = await self._states.write(
                [StateWrite(self._key, kept.encode(), self._revision)]
            )
        except JetstreamError:
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        except Exception:  # noqa: BLE001  logged; without a keeper nothing would be acknowledged
            logger.error("consumer_not_kept", consumer=kept.config.name, trace=format_exc())
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        if not state.is_refused:
            self._revision = state.revision
            return True
        if not state.value or epoch_of(state.value) != kept.epoch:
            self.is_replaced = bool(state.value)
            return None
        # An earlier write of this leader, whose answer was lost.
        self._revision = state.revision
        return False
