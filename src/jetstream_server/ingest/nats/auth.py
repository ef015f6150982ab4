"""The login to NATS: the credential fields of CONNECT.

Files are read for every connection, so that a new key or JWT takes effect at the next one. Secrets
never appear in a `repr`, log line or error message.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import nkeys

from jetstream_protocol.errors import UnauthenticatedError

# A .creds file holds a JWT and a seed, each between lines of dashes.
_SECTION: Final = re.compile(
    r"-{3,}\s*BEGIN ([A-Z ]+?)\s*-{3,}\r?\n+([\w\-.=]+)\r?\n+-{3,}\s*END [A-Z ]+?\s*-{3,}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """At most one way to log in; none for a server without authentication."""

    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey_seed: str = field(default="", repr=False)
    nkey_seed_file: Path | None = None
    credentials_file: Path | None = None

    def connect_fields(self, nonce: str) -> dict[str, str]:
        """Return the fields to add to CONNECT. nonce: the server's challenge, "" without one.

        Blocks on files. Raises UnauthenticatedError when a file or key cannot be used.
        """
        if self.credentials_file is not None:
            jwt, seed = _read_credentials(self.credentials_file)
            return {"jwt": jwt, "sig": _sign(seed, nonce)}
        if self.nkey_seed or self.nkey_seed_file is not None:
            seed = self.nkey_seed or _read(self.nkey_seed_file).strip()
            return {"nkey": _key_pair(seed).public_key.decode(), "sig": _sign(seed, nonce)}
        if self.token:
            return {"auth_token": self.token}
        if self.user:
            return {"user": self.user, "pass": self.password}
        return {}


def _read(path: Path | None) -> str:
    assert path is not None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnauthenticatedError(f"cannot read the NATS credentials: {error}") from error


def _read_credentials(path: Path) -> tuple[str, str]:
    """The JWT and the seed of a .creds file."""
    sections = dict(_SECTION.findall(_read(path)))
    jwt = sections.get("NATS USER JWT", "")
    seed = sections.get("USER NKEY SEED", "")
    if not jwt or not seed:
        raise UnauthenticatedError(f"{path} is not a NATS .creds file: it needs a JWT and a seed")
    return jwt, seed


def _key_pair(seed: str) -> nkeys.KeyPair:
    try:
        return nkeys.from_seed(seed.encode())
    except (nkeys.NkeysError, ValueError) as error:
        # The cause might quote the seed.
        raise UnauthenticatedError("the NATS nkey seed is not valid") from error


def _sign(seed: str, nonce: str) -> str:
    """The signed challenge; "" if the server sent none: it will refuse the login then."""
    if not nonce:
        return ""
    signature = _key_pair(seed).sign(nonce.encode())
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
