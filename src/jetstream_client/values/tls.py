"""How a client speaks TLS: which authorities it trusts, and which certificate it shows.

Paths, not contents: files are read on connecting, so that a new certificate needs no new client.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jetstream_protocol.errors import InvalidRequestError

CA_VARIABLE = "JETSTREAM_CA"
CERT_VARIABLE = "JETSTREAM_CERT"
KEY_VARIABLE = "JETSTREAM_KEY"
SYSTEM = "system"
"""In place of a file in JETSTREAM_CA: the system's authorities."""


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How a client speaks TLS. ca: a PEM file with the authorities to trust; None: the system's.
    cert, key: PEM files with the client's certificate and its key, for servers that require one;
    without `key` both are in `cert`."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise InvalidRequestError("a key without its certificate: give cert, too")

    @classmethod
    def of(cls, given: bool | TlsConfig | None) -> TlsConfig | None:
        """True: the system's authorities. None: as the environment says, else plain."""
        if given is None:
            return cls._of_environment()
        if isinstance(given, bool):
            return cls() if given else None
        if not isinstance(given, cls):
            raise InvalidRequestError(
                f"tls must be True, False or a TlsConfig, not {type(given).__name__}"
            )
        return given

    @classmethod
    def _of_environment(cls) -> TlsConfig | None:
        ca, cert, key = (
            os.environ.get(name) or None for name in (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)
        )
        if not (ca or cert or key):
            return None
        return cls(None if ca == SYSTEM else ca, cert, key)

    def ssl_context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """protocols: for ALPN. Raises InvalidRequestError for files that are not what TLS needs."""
        self.check_files()
        context = context_of(self.ca, self.cert, self.key)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context

    def contents(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Authorities, key and certificate, as gRPC takes them. Raises InvalidRequestError."""
        self.ssl_context()  # gRPC says nothing of files that it cannot use.
        ca = self.ca or ssl.get_default_verify_paths().cafile
        return _read(ca), _read(self.key or self.cert), _read(self.cert)

    def signature(self) -> Sequence[tuple[int, int]]:
        """Times and sizes of the files, which show whether they have changed."""
        found = []
        for path in (self.ca, self.cert, self.key):
            try:
                stat = None if path is None else Path(path).stat()
            except OSError:
                stat = None
            found.append((0, 0) if stat is None else (stat.st_mtime_ns, stat.st_size))
        return found

    def check_files(self) -> None:
        """Raise InvalidRequestError, with its name, for a file that cannot be read."""
        for path in (self.ca, self.cert, self.key):
            _read(path)


def _read(path: str | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"cannot read {path}: {error.strerror}") from error


def context_of(ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext:
    """Raises InvalidRequestError where the files are not what TLS needs."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidRequestError(f"TLS cannot use the files given: {error}") from error
    return context


def _no_password() -> str:
    """Without it OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted")
