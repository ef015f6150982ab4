"""Finds the principal of a token.

Tokens of older releases have a slow hash, which is computed once per token and process. Verified
texts are remembered by their SHA-256. Wrong texts are too, so that the same wrong token costs only
one slow hash. One hash runs at a time, in a thread, and at most WAITING_MAX requests wait for it.
So unknown callers can exhaust neither processors nor memory. A revoked or expired token is refused
at once, even if its text is remembered.

A token that is not known may have been made on another node a moment ago: the request waits
MADE_SECONDS for it. At most WAITING_MAX requests do.

Where requests wait, each origin has its turn, and the origin that has most of them makes room for
others (waiting_room.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from jetstream_protocol.errors import UnauthenticatedError, UnavailableError
from jetstream_server.clocks import WallClock
from jetstream_server.security import token_text
from jetstream_server.security.state import SecurityState, Token
from jetstream_server.security.waiting_room import WaitingRoom

REMEMBERED_MAX = 4096
WAITING_MAX = 64
MADE_SECONDS = 2.0
_UNKNOWN = "the token is not known: it may have been revoked"
_WRONG = "the token is wrong"


class Authenticator:
    """state: returns the metadata's current security state."""

    def __init__(self, state: Callable[[], SecurityState], wall_clock: WallClock) -> None:
        self._state = state
        self._wall_clock = wall_clock
        self._verified: dict[bytes, Token] = {}
        self._wrong: dict[bytes, Token] = {}
        self._is_hashing = False
        self._hashing = WaitingRoom(
            lambda: UnavailableError("too many tokens are being checked; try again")
        )
        self._awaiting_news = WaitingRoom(lambda: UnauthenticatedError(_UNKNOWN))

    def changed(self) -> None:
        """The state has another set of tokens."""
        for waiting in self._awaiting_news:
            if self._state().tokens.get(waiting.what) is not None and not waiting.turn.done():
                waiting.turn.set_result(None)

    def is_valid(self, token: Token) -> bool:
        """Whether the metadata still holds the token and the token has not expired."""
        known = self._state().tokens.get(token.id)
        if known is not token and known != token:
            return False
        return not (token.expires_at_us and token.is_expired(self._wall_clock()))

    async def verify(self, text: str, origin: str = "") -> Token:
        """Find the token of a text. origin: where the request comes from.

        Raises UnauthenticatedError, which never quotes the text, and
        UnavailableError when too many requests wait."""
        token_id = token_text.id_of(text)
        if token_id is None:
            raise UnauthenticatedError(_UNKNOWN)
        fingerprint = token_text.fingerprint(text)
        token = self._state().tokens.get(token_id)
        if token is None and fingerprint not in self._verified:
            token = await self._made_just_now(token_id, origin)
        if token is None:
            raise UnauthenticatedError(_UNKNOWN)
        if token_text.is_quick(token.hash):
            if not token_text.verify(text, token.hash):
                raise UnauthenticatedError(_WRONG)
        elif not self._is_known(fingerprint, token):
            await self._hash(text, fingerprint, token, origin)
        if not self.is_valid(token):
            raise UnauthenticatedError(
                f"token {token.id} has expired or was revoked: ask an administrator for another"
            )
        return token

    async def _made_just_now(self, token_id: str, origin: str) -> Token | None:
        """The token, if this node hears of it in time."""
        waiting = self._awaiting_news.enter(origin, token_id, WAITING_MAX)
        try:
            async with asyncio.timeout(MADE_SECONDS):
                await waiting.turn
        except TimeoutError:
            pass
        finally:
            self._awaiting_news.leave(waiting)
        return self._state().tokens.get(token_id)

    def _is_known(self, fingerprint: bytes, token: Token) -> bool:
        if self._wrong.get(fingerprint) == token:
            raise UnauthenticatedError(_WRONG)
        return self._verified.get(fingerprint) == token

    async def _hash(self, text: str, fingerprint: bytes, token: Token, origin: str) -> None:
        async with self._turn(origin):
            if self._is_known(fingerprint, token):
                return
            is_right = await asyncio.to_thread(token_text.verify, text, token.hash)
        remembered = self._verified if is_right else self._wrong
        remembered[fingerprint] = token
        if len(remembered) > REMEMBERED_MAX:
            del remembered[next(iter(remembered))]
        if not is_right:
            raise UnauthenticatedError(_WRONG)

    @asynccontextmanager
    async def _turn(self, origin: str) -> AsyncIterator[None]:
        """Around a slow hash: one at a time."""
        if self._is_hashing:
            waiting = self._hashing.enter(origin, "", WAITING_MAX - 1)
            try:
                await waiting.turn  # Passed on by who has it.
            except asyncio.CancelledError:
                if waiting.turn.done() and not waiting.turn.cancelled():
                    self._pass_on()
                raise
            finally:
                self._hashing.leave(waiting)
        self._is_hashing = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while (waiting := self._hashing.take_next()) is not None:
            if not waiting.turn.done():
                waiting.turn.set_result(None)
                return
        self._is_hashing = False
