"""What a client is told once, at its making: a value that can be compared, pickled and sent.

A Spark driver sends it to executors, a pool to its workers; neither may carry sockets. Secrets
are left out of `repr`, so that a log line with a configuration in it gives nothing away.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field

from jetstream_client._text import check_text
from jetstream_protocol.errors import InvalidRequestError

DEFAULT_PORT = 9292
DEFAULT_SERVERS = f"localhost:{DEFAULT_PORT}"
SERVERS_VARIABLE = "JETSTREAM_SERVERS"
RACK_VARIABLE = "JETSTREAM_RACK"


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """How to sign in to NATS, and over which TLS. Paths, not contents: they are read on connecting.

    credentials: a `.creds` file. nkey_seed: a file holding an nkey seed. tls_ca, or
    `tls=True` for the system's authorities, turns TLS on.
    """

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    nkey_seed: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None

    def ssl_context(self) -> ssl.SSLContext | None:
        """Raises InvalidRequestError where the files are not what TLS needs."""
        if not (self.tls or self.tls_ca or self.tls_certificate):
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_certificate:
                context.load_cert_chain(self.tls_certificate, self.tls_key)
        except ssl.SSLError as error:
            raise InvalidRequestError(f"TLS cannot use the files given: {error}") from error
        return context

    def check_files(self) -> None:
        """Raise InvalidRequestError, with its name, for a file that cannot be read."""
        files = (self.credentials, self.nkey_seed, self.tls_ca, self.tls_certificate, self.tls_key)
        for path in files:
            try:
                if path is not None:
                    open(path, "rb").close()
            except OSError as error:
                raise InvalidRequestError(f"cannot read {path}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """servers: gRPC addresses, "host:port", any of the cluster; the rest is learnt from them.

    nats: URLs to publish to, instead of those the cluster names. timeout: seconds one call may
    take in all, retries included. in_flight_max: publishes awaiting their acknowledgement, per
    client; more wait their turn. rack: where the client stands, as in the nodes' `rack`: readers
    with `read_from="nearest"` prefer replicas there.
    """

    servers: tuple[str, ...] = (DEFAULT_SERVERS,)
    nats: tuple[str, ...] = field(default=(), repr=False)  # A URL may hold a password.
    nats_options: NatsOptions = NatsOptions()
    timeout: float = 10.0
    in_flight_max: int = 16_384
    rack: str = ""

    def __post_init__(self) -> None:
        if self.timeout <= 0:
            raise InvalidRequestError(f"timeout must be positive, not {self.timeout}")
        if self.in_flight_max < 1:
            raise InvalidRequestError(f"in_flight_max must be positive, not {self.in_flight_max}")

    @classmethod
    def of(
        cls,
        servers: str | Iterable[str] | None = None,
        nats: str | Iterable[str] | None = None,
        nats_options: NatsOptions | None = None,
        timeout: float = 10.0,
        in_flight_max: int = 16_384,
        rack: str | None = None,
    ) -> ClientConfig:
        """From what people write: one address, a comma list, a list, or nothing.

        Without `servers`, JETSTREAM_SERVERS says, else localhost:9292; without `rack`,
        JETSTREAM_RACK.
        """
        if rack is None:
            rack = os.environ.get(RACK_VARIABLE, "")
        if servers is None:
            servers = os.environ.get(SERVERS_VARIABLE) or DEFAULT_SERVERS
        addresses = tuple(parse_address(item) for item in _items(servers))
        if not addresses:
            raise InvalidRequestError("no server given: say host:port")
        urls = tuple(_items(nats)) if nats is not None else ()
        return cls(addresses, urls, nats_options or NatsOptions(), timeout, in_flight_max, rack)


def _items(given: str | Iterable[str]) -> list[str]:
    parts = given.split(",") if isinstance(given, str) else list(given)
    return [part.strip() for part in parts if part.strip()]


def parse_address(text: str) -> str:
    """`text` as host:port, the default port added. Raises InvalidRequestError."""
    check_text("the server", text)
    if "://" in text or "/" in text:
        raise InvalidRequestError(f"invalid server {text!r}: say host:port, without a scheme")
    host, separator, port = text.rpartition(":")
    if text.endswith("]") or not separator:  # "[::1]" and "localhost"
        host, port = text, str(DEFAULT_PORT)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise InvalidRequestError(f"invalid server {text!r}: write IPv6 addresses as [::1]:9292")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidRequestError(f"invalid server {text!r}: say host:port")
    return f"{host}:{port}"
