"""Bearer tokens: their text and its hash, and how long they may live. The cluster keeps the hash.

jst_ID_SECRET       ID: 12 hexadecimal digits, not secret. SECRET: 32 random bytes, base64url.
sha256$HASH                the hash of the whole text; HASH in base64. A secret of 256 random
                           bits cannot be guessed, however quick a guess is.
scrypt$N$r$p$SALT$HASH     the same, of tokens that older releases have made. It takes 16 MiB
                           and a few hundredths of a second; authenticator.py remembers those
                           that it has verified.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import NamedTuple

PREFIX = "jst"
ID_BYTES = 6
SECRET_BYTES = 32
SALT_BYTES = 16
N, R, P = 1 << 14, 8, 1
_TEXT = re.compile(rf"{PREFIX}_([0-9a-f]{{{2 * ID_BYTES}}})_[A-Za-z0-9_-]{{43}}")
TEXT_LENGTH_MAX = 128
LIFETIME_US_MAX = 100 * 365 * 24 * 3600 * 1_000_000
_QUICK = "sha256$"


class NewToken(NamedTuple):
    """text: shown once, never stored."""

    id: str
    text: str


def new_token(randomness: bytes) -> NewToken:
    """A token of ID_BYTES + SECRET_BYTES random bytes."""
    assert len(randomness) == ID_BYTES + SECRET_BYTES
    token_id = randomness[:ID_BYTES].hex()
    secret = base64.urlsafe_b64encode(randomness[ID_BYTES:]).rstrip(b"=").decode()
    return NewToken(token_id, f"{PREFIX}_{token_id}_{secret}")


def id_of(text: str) -> str | None:
    """The id in a token's text; None: it is not the text of a token."""
    if len(text) > TEXT_LENGTH_MAX:
        return None
    found = _TEXT.fullmatch(text)
    return found.group(1) if found else None


def quick_hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"{_QUICK}{base64.b64encode(digest).decode()}"


def is_quick(stored: str) -> bool:
    """Whether `verify` takes no time."""
    return stored.startswith(_QUICK)


def slow_hash(text: str, salt: bytes) -> str:
    digest = hashlib.scrypt(text.encode(), salt=salt, n=N, r=R, p=P)
    encoded = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(("scrypt", str(N), str(R), str(P), *encoded))


def verify(text: str, stored: str) -> bool:
    """Whether the hash is that of the text. Slow, unless `is_quick`. False for a hash of another
    kind."""
    if is_quick(stored):
        return hmac.compare_digest(
            quick_hash(text).encode(), stored.encode("utf-8", "surrogateescape")
        )
    try:
        kind, n, r, p, salt, digest = stored.split("$")
        if kind != "scrypt":
            return False
        wanted = base64.b64decode(digest, validate=True)
        found = hashlib.scrypt(
            text.encode(), salt=base64.b64decode(salt), n=int(n), r=int(r), p=int(p)
        )
    except ValueError:
        return False
    return hmac.compare_digest(found, wanted)


def fingerprint(text: str) -> bytes:
    """A key for a token in memory, so that its text is not kept."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
