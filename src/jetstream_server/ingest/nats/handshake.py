"""Decisions before a NATS server accepts the connection: TLS or not, and the CONNECT line. Pure,
except that credentials may be read from files."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jetstream_protocol.errors import UnavailableError
from jetstream_server.ingest.nats.auth import Credentials
from jetstream_server.ingest.nats.parser import FrameParser, NatsParser
from jetstream_server.ingest.nats.server_pool import ServerAddress
from jetstream_server.net.dial import dial


class Dialect(NamedTuple):
    """What a link speaks. parser: its events are control events, and what brings messages: its
    length is how many. connect_line: the login, which may block on files and raises JetstreamError.
    """

    parser: Callable[[], FrameParser[Any]]
    connect_line: Callable[[LinkOptions, ServerAddress, dict[str, Any]], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How to open a link.

    dial: connects to host and port within so many seconds. seconds: a monotonic clock.
    tls: a function that is called for each connection; None means TLS only if the URL or the
    server demands it, with the system's authorities. tls_handshake_first: TLS from the first byte,
    as the server must be configured. dialect: what is spoken; None: the protocol of clients.
    """

    name: str = "jetstream"
    version: str = "0"
    credentials: Credentials = field(default_factory=Credentials)
    tls: ssl.SSLContext | Callable[[], ssl.SSLContext] | None = None
    tls_handshake_first: bool = False
    connect_timeout_s: float = 3.0
    ping_interval_s: float = 10.0
    dial: Callable[[str, int, float], Awaitable[socket.socket]] = dial
    seconds: Callable[[], float] = time.monotonic
    dialect: Dialect | None = None

    @property
    def spoken(self) -> Dialect:
        return self.dialect or CLIENT

    def wants_tls(self, address: ServerAddress) -> bool:
        """Whether to refuse a server without TLS."""
        return address.tls or self.tls is not None or self.tls_handshake_first

    def tls_context(self) -> ssl.SSLContext:
        if self.tls is None:
            return ssl.create_default_context()
        return self.tls if isinstance(self.tls, ssl.SSLContext) else self.tls()


def upgrades_to_tls(options: LinkOptions, address: ServerAddress, info: dict[str, Any]) -> bool:
    """Whether TLS follows this INFO. Raises UnavailableError if TLS is required and not offered:
    credentials must not be sent unencrypted."""
    if info.get("tls_required"):
        return True
    if options.wants_tls(address) and not info.get("tls_available"):
        raise UnavailableError(f"{address.url} does not offer TLS")
    return options.wants_tls(address)


def connect_line(options: LinkOptions, address: ServerAddress, info: dict[str, Any]) -> bytes:
    """The CONNECT line, with the credentials of the URL, or else those of the options.

    Blocks on credential files. Raises UnauthenticatedError when they cannot be used.
    """
    fields = {
        "verbose": False,
        "pedantic": False,
        "tls_required": options.wants_tls(address),
        "name": options.name,
        "lang": "python-jetstream",
        "version": options.version,
        "protocol": 1,  # we understand INFO at any time
        "headers": True,
        "no_responders": True,
        **login_fields(options, address, info),
    }
    return b"CONNECT %b\r\n" % json.dumps(fields, separators=(",", ":")).encode()


def login_fields(
    options: LinkOptions, address: ServerAddress, info: dict[str, Any]
) -> dict[str, str]:
    """The fields of CONNECT by which we log in. Like `connect_line`."""
    credentials = options.credentials
    if address.user or address.token:
        credentials = Credentials(user=address.user, password=address.password, token=address.token)
    return credentials.connect_fields(str(info.get("nonce", "")))


CLIENT = Dialect(NatsParser, connect_line)
