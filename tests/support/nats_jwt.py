"""Operator, account and user JWTs for a nats-server in operator mode, made with `nkeys` alone."""

from __future__ import annotations

import base64
import json
import os
import time
from dataclasses import dataclass
from typing import Any

import nkeys


def new_seed(prefix: int) -> bytes:
    return bytes(nkeys.encode_seed(os.urandom(32), prefix))


def new_user() -> tuple[str, str]:
    """Seed and public key of a user."""
    seed = new_seed(nkeys.PREFIX_BYTE_USER)
    return seed.decode(), nkeys.from_seed(seed).public_key.decode()


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign_jwt(issuer: Any, subject: str, name: str, nats: dict[str, Any], expires: int = 0) -> str:
    claims = {
        "jti": _encode(os.urandom(16)),
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": {"version": 2, **nats},
    }
    if expires:
        claims["exp"] = expires
    header = json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode()
    signed = f"{_encode(header)}.{_encode(json.dumps(claims).encode())}"
    return f"{signed}.{_encode(issuer.sign(signed.encode()))}"


@dataclass(frozen=True)
class Operator:
    """An operator with one account: the server's configuration, and credentials for users."""

    config: str
    account: Any

    def credentials(self, *, expires: int = 0) -> str:
        """The text of a .creds file for a new user."""
        seed, public_key = new_user()
        jwt = sign_jwt(self.account, public_key, "user", {"type": "user", **_LIMITS}, expires)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )


_LIMITS = {"subs": -1, "data": -1, "payload": -1}


def new_operator() -> Operator:
    operator = nkeys.from_seed(new_seed(nkeys.PREFIX_BYTE_OPERATOR))
    account = nkeys.from_seed(new_seed(nkeys.PREFIX_BYTE_ACCOUNT))
    operator_key = operator.public_key.decode()
    account_key = account.public_key.decode()
    limits = {"limits": {**_LIMITS, "conn": -1, "leaf": -1, "imports": -1, "exports": -1,
                         "wildcards": True}}  # fmt: skip
    operator_jwt = sign_jwt(operator, operator_key, "operator", {"type": "operator"})
    account_jwt = sign_jwt(operator, account_key, "account", {"type": "account", **limits})
    config = (
        f"operator: {operator_jwt}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account_key}: {account_jwt} }}\n"
    )
    return Operator(config, account)
