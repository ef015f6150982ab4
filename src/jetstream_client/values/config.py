"""A client's configuration: a value that can be compared, pickled and sent.

A Spark driver sends it to executors, and a pool to its workers, so it holds no sockets. `repr`
leaves out secrets, so a log line with a configuration shows none.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field

from jetstream_client.values.checks import check_text
from jetstream_client.values.durations import Seconds, to_seconds
from jetstream_client.values.tls import SYSTEM, TlsConfig, context_of
from jetstream_protocol.errors import InvalidRequestError

DEFAULT_PORT = 9292
DEFAULT_SERVERS = f"localhost:{DEFAULT_PORT}"
SERVERS_VARIABLE = "JETSTREAM_SERVERS"
RACK_VARIABLE = "JETSTREAM_RACK"
TOKEN_VARIABLE = "JETSTREAM_TOKEN"
TOKEN_FILE_VARIABLE = "JETSTREAM_TOKEN_FILE"
NATS_CA_VARIABLE = "JETSTREAM_NATS_CA"
NATS_CERT_VARIABLE = "JETSTREAM_NATS_CERT"
NATS_KEY_VARIABLE = "JETSTREAM_NATS_KEY"
NATS_CREDS_VARIABLE = "JETSTREAM_NATS_CREDS"
TIMEOUT_MAX = 365 * 86_400.0
"""A longer timeout is shortened to this: clocks overflow far beyond it."""
TOKEN_LENGTH_MAX = 4096


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """How to log in to NATS, and its TLS. Files are given as paths, and read when the client
    connects.

    credentials: a `.creds` file. nkey_seed: a file with an nkey seed. tls_ca, or `tls=True` for the
    system's authorities, turns TLS on.
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

    def __post_init__(self) -> None:
        if self.tls_key and not self.tls_certificate:
            raise InvalidRequestError(
                "a key for NATS without its certificate: give the certificate, too"
            )

    @classmethod
    def of_environment(cls) -> NatsOptions:
        """As JETSTREAM_NATS_CA (`system`: the system's authorities), JETSTREAM_NATS_CERT,
        JETSTREAM_NATS_KEY and JETSTREAM_NATS_CREDS say."""
        ca = os.environ.get(NATS_CA_VARIABLE) or None
        return cls(
            credentials=os.environ.get(NATS_CREDS_VARIABLE) or None,
            tls=ca == SYSTEM,
            tls_ca=None if ca == SYSTEM else ca,
            tls_certificate=os.environ.get(NATS_CERT_VARIABLE) or None,
            tls_key=os.environ.get(NATS_KEY_VARIABLE) or None,
        )

    @property
    def wants_tls(self) -> bool:
        """Whether to speak TLS, whatever the URLs say."""
        return bool(self.tls or self.tls_ca or self.tls_certificate)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Raises InvalidRequestError if TLS cannot use the files."""
        if not self.wants_tls:
            return None
        return context_of(self.tls_ca, self.tls_certificate, self.tls_key)

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
    """The configuration of a client.

    servers: gRPC addresses, "host:port", of any nodes; the client learns the others from them.
    nats: URLs to publish to, instead of those that the cluster names. timeout: seconds that one
    call may take in all, retries included. in_flight_max: how many calls of `publish` may wait for
    acknowledgements; further ones wait their turn. rack: the client's rack, as in the nodes'
    `rack`: readers with `read_from="nearest"` prefer replicas there. retry_on_failed_connect: wait
    for a server until the timeout even if none has ever answered; without it, the first failed
    attempt raises at once. token: tells the servers which principal the client is. token_file: a
    file with the token instead, read whenever it is needed, so that it may be replaced.
    total_timeout: seconds that all calls together may take, from the first on, for a client that
    does one thing; None: no limit. tls: how the client speaks TLS to the servers; None: not at all.
    """

    servers: tuple[str, ...] = (DEFAULT_SERVERS,)
    nats: tuple[str, ...] = field(default=(), repr=False)  # A URL may hold a password.
    nats_options: NatsOptions = NatsOptions()
    timeout: float = 10.0
    in_flight_max: int = 16_384
    rack: str = ""
    retry_on_failed_connect: bool = False
    token: str = field(default="", repr=False)
    total_timeout: float | None = None
    tls: TlsConfig | None = None
    token_file: str = ""

    def __post_init__(self) -> None:
        addresses: dict[str, object] = {"servers": self.servers, "nats": self.nats}
        for what, given in addresses.items():
            if isinstance(given, str):  # ("localhost:9292") is no tuple.
                raise TypeError(f"{what} must be a tuple of addresses, not one str")
        if not self.timeout > 0:  # Not a number is neither.
            raise InvalidRequestError(f"timeout must be positive, not {self.timeout}")
        # Clocks and calls overflow far beyond that, and then nothing works.
        object.__setattr__(self, "timeout", min(self.timeout, TIMEOUT_MAX))
        if self.in_flight_max < 1:
            raise InvalidRequestError(f"in_flight_max must be positive, not {self.in_flight_max}")
        if self.token and self.token_file:
            raise InvalidRequestError("both a token and a file with a token are given: keep one")
        _check_token("the token", self.token)

    def current_token(self) -> str:
        """The token, from its file if one is given; "" for none. Raises InvalidRequestError if the
        file cannot be read or is empty."""
        if not self.token_file:
            return self.token
        try:
            with open(self.token_file, encoding="ascii", errors="replace") as file:
                token = file.read(TOKEN_LENGTH_MAX).strip()
        except OSError as error:
            raise InvalidRequestError(
                f"cannot read the token file {self.token_file}: {error.strerror}"
            ) from error
        if not token:
            raise InvalidRequestError(f"the token file {self.token_file} is empty")
        _check_token(f"what the token file {self.token_file} holds", token)
        return token

    def has_newer_token(self, used: str) -> bool:
        """Whether the file holds another token than the one that was used."""
        try:
            return self.current_token() != used
        except InvalidRequestError:
            return False  # The program hears of that one's end.

    @classmethod
    def of(
        cls,
        servers: str | Iterable[str] | None = None,
        nats: str | Iterable[str] | None = None,
        nats_options: NatsOptions | None = None,
        timeout: Seconds = 10.0,
        in_flight_max: int = 16_384,
        rack: str | None = None,
        token: str | None = None,
        tls: bool | TlsConfig | None = None,
        token_file: str | None = None,
    ) -> ClientConfig:
        """A configuration from what people write: one address, a list with commas, a list, or
        nothing.

        Arguments that are left out come from the environment: `servers` from JETSTREAM_SERVERS,
        else localhost:9292; `rack` from JETSTREAM_RACK; `token` and `token_file` from
        JETSTREAM_TOKEN or JETSTREAM_TOKEN_FILE; `tls` from JETSTREAM_CA, JETSTREAM_CERT and
        JETSTREAM_KEY; `nats_options` from JETSTREAM_NATS_CA, JETSTREAM_NATS_CERT,
        JETSTREAM_NATS_KEY and JETSTREAM_NATS_CREDS.
        """
        if token is None and token_file is None:
            token = os.environ.get(TOKEN_VARIABLE, "")
            token_file = "" if token else os.environ.get(TOKEN_FILE_VARIABLE, "")
        if rack is None:
            rack = os.environ.get(RACK_VARIABLE, "")
        if servers is None:
            servers = os.environ.get(SERVERS_VARIABLE) or DEFAULT_SERVERS
        addresses = tuple(parse_address(item) for item in _items(servers))
        if not addresses:
            raise InvalidRequestError("no server given: say host:port")
        urls = tuple(_items(nats)) if nats is not None else ()
        return cls(
            addresses,
            urls,
            NatsOptions.of_environment() if nats_options is None else nats_options,
            to_seconds("timeout", timeout),
            in_flight_max,
            rack,
            token=token or "",
            token_file=token_file or "",
            tls=TlsConfig.of(tls),
        )


def _check_token(what: str, token: str) -> None:
    """Raise InvalidRequestError for a text that cannot be a token. The error never quotes it."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidRequestError(f"{what} is not one: it has characters that no token has")


def _items(given: str | Iterable[str]) -> list[str]:
    if not isinstance(given, Iterable):
        raise TypeError(f"addresses must be one str or a list, not {type(given).__name__}")
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
