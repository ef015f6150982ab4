"""Chooses which NATS server to try next, and after which pause: configured and discovered servers.

Pure: randomness is passed in. A round tries every known server once, in random order, so that many
nodes spread over the cluster. After a round without success comes a pause that grows exponentially,
with jitter, so that nodes that lost the same server do not return together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final
from urllib.parse import unquote, urlsplit

from jetstream_protocol.errors import InvalidRequestError

PORT_DEFAULT: Final = 4222
DISCOVERED_MAX: Final = 256
"""Upper bound on the servers that one INFO can add; larger than any NATS cluster."""

PAUSE_S_FIRST: Final = 0.1
PAUSE_S_MAX: Final = 2.0
"""Longest pause. When a NATS server restarts, its streams should listen again before publishers
give up, by default after 5 s."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The address of one server.

    user, password, token: from its URL. tls_name: the name that its certificate must show. For a
    discovered server this is the name of the server that reported it, as in other NATS clients.
    """

    host: str
    port: int
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    tls_name: str = ""

    @property
    def url(self) -> str:
        """The URL without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @property
    def place(self) -> tuple[str, int]:
        return self.host, self.port


def parse_url(url: str, port_default: int = PORT_DEFAULT) -> ServerAddress:
    """Parse `[nats|tls://][user:password@|token@]host[:port]`. Raises InvalidRequestError."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        port = parts.port or port_default
    except ValueError as error:
        raise InvalidRequestError("a NATS server address is not a URL") from error
    if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.path not in ("", "/"):
        # The URL is not quoted: it may hold a password.
        raise InvalidRequestError("a NATS server address must be nats://host:port or tls://…")
    user = unquote(parts.username or "")
    password = unquote(parts.password or "")
    return ServerAddress(
        host=parts.hostname,
        port=port,
        tls=parts.scheme == "tls",
        user=user if parts.password is not None else "",
        password=password,
        token=user if parts.password is None else "",
        tls_name=parts.hostname,
    )


class ServerPool:
    """The known servers. Configured ones stay; discovered ones are replaced by each INFO."""

    __slots__ = ("_configured", "_discovered", "_random")

    def __init__(
        self, urls: Iterable[str], random: Random, port_default: int = PORT_DEFAULT
    ) -> None:
        """Raises InvalidRequestError for an invalid URL, and without any URL."""
        self._configured = [parse_url(url, port_default) for url in urls]
        if not self._configured:
            raise InvalidRequestError("at least one NATS server is needed")
        self._discovered: list[ServerAddress] = []
        self._random = random

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(address.url for address in (*self._configured, *self._discovered))

    def next_round(self, avoid: ServerAddress | None = None) -> list[ServerAddress]:
        """Every server once, in random order; the one to avoid comes last."""
        order = [*self._configured, *self._discovered]
        self._random.shuffle(order)
        if avoid is not None:
            order.sort(key=lambda address: address.place == avoid.place)
        return order

    def learn(self, connect_urls: Iterable[object], teller: ServerAddress) -> None:
        """Remember the addresses (`host:port`) of an INFO's `connect_urls`."""
        known = {address.place for address in self._configured}
        discovered: dict[tuple[str, int], ServerAddress] = {}
        for url in connect_urls:
            if not isinstance(url, str) or len(discovered) == DISCOVERED_MAX:
                continue
            try:
                found = parse_url(url)
            except InvalidRequestError:
                continue  # The invalid address of another server is ignored.
            if found.place not in known:
                discovered[found.place] = ServerAddress(
                    host=found.host,
                    port=found.port,
                    tls=teller.tls,
                    user=teller.user,
                    password=teller.password,
                    token=teller.token,
                    tls_name=teller.tls_name,
                )
        self._discovered = list(discovered.values())

    def pause_s(self, failed_rounds: int) -> float:
        """How long to wait after this number of failed rounds, in seconds."""
        longest = min(PAUSE_S_MAX, PAUSE_S_FIRST * 2.0 ** min(failed_rounds, 16))
        return longest * self._random.uniform(0.5, 1.0)
