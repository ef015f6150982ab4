"""Finds the principal of a token, with the slow hash only once per token and process.

Verified texts are remembered by their SHA-256. Wrong texts are too, so that the same wrong token
costs only one slow hash. One hash runs at a time, in a thread, and at most WAITING_MAX requests
wait for it. So unknown callers can exhaust neither processors nor memory. A revoked or expired
token is refused at once, even if its text is remembered.

A token that is not known may have been made on another node a moment ago: the request waits
MADE_SECONDS for it. At most WAITING_MAX requests do; further ones are refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetstream_protocol.errors import UnauthenticatedError, UnavailableError
from jetstream_server.clocks import WallClock
from jetstream_server.security import tokens
from jetstream_server.security.state import SecurityState, Token

REMEMBERED_MAX = 4096
WAITING_MAX = 64
MADE_SECONDS = 2.0
_UNKNOWN = "the token is not known: it may have been revoked"


class Authenticator:
    """state: returns the metadata's current security state."""

    def __init__(self, state: Callable[[], SecurityState], wall_clock: WallClock) -> None:
        self._state = state
        self._wall_clock = wall_clock
        self._verified: dict[bytes, Token] = {}
        self._wrong: dict[bytes, Token] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._changed = asyncio.Event()
        self._waiting_for_news = 0

    def changed(self) -> None:
        """The state has another set of tokens."""
        self._changed.set()
        self._changed = asyncio.Event()

    def is_valid(self, token: Token) -> bool:
        """Whether the metadata still holds the token and the token has not expired."""
        known = self._state().tokens.get(token.id)
        if known is not token and known != token:
            return False
        return not (token.expires_at_us and token.is_expired(self._wall_clock()))

    async def verify(self, text: str) -> Token:
        """Find the token of a text. Raises UnauthenticatedError, which never quotes the text, and
        UnavailableError when too many requests wait."""
        token_id = tokens.id_of(text)
        if token_id is None:
            raise UnauthenticatedError(_UNKNOWN)
        fingerprint = tokens.fingerprint(text)
        token = self._state().tokens.get(token_id)
        if token is None and fingerprint not in self._verified:
            token = await self._made_just_now(token_id)
        if token is None:
            raise UnauthenticatedError(_UNKNOWN)
        if not self._is_known(fingerprint, token):
            await self._hash(text, fingerprint, token)
        if not self.is_valid(token):
            raise UnauthenticatedError(
                f"token {token.id} has expired or was revoked: ask an administrator for another"
            )
        return token

    async def _made_just_now(self, token_id: str) -> Token | None:
        """The token, if this node hears of it in time."""
        if self._waiting_for_news >= WAITING_MAX:
            return None
        self._waiting_for_news += 1
        try:
            async with asyncio.timeout(MADE_SECONDS):
                while (token := self._state().tokens.get(token_id)) is None:
                    await self._changed.wait()
            return token
        except TimeoutError:
            return None
        finally:
            self._waiting_for_news -= 1

    def _is_known(self, fingerprint: bytes, token: Token) -> bool:
        if self._wrong.get(fingerprint) == token:
            raise UnauthenticatedError("the token is wrong")
        return self._verified.get(fingerprint) == token

    async def _hash(self, text: str, fingerprint: bytes, token: Token) -> None:
        if self._waiting >= WAITING_MAX:
            raise UnavailableError("too many tokens are being checked; try again")
        self._waiting += 1
        try:
            async with self._turn:
                if self._is_known(fingerprint, token):
                    return
                is_right = await asyncio.to_thread(tokens.verify, text, token.hash)
        finally:
            self._waiting -= 1
        remembered = self._verified if is_right else self._wrong
        remembered[fingerprint] = token
        if len(remembered) > REMEMBERED_MAX:
            del remembered[next(iter(remembered))]
        if not is_right:
            raise UnauthenticatedError("the token is wrong")
