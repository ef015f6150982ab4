"""The proof, in a gRPC call between nodes, that both belong to the same cluster.

    authorization: Node SENDER/RUN/NUMBER:MAC

MAC: HMAC-SHA256 under the cluster's credential over the method, sender, run and number, and the
target's id and incarnation. RUN is the sender's incarnation. Each of its calls has another NUMBER.
So a proof is valid for one call of one method, in one run of the target, and an eavesdropper cannot
use it again. It encrypts nothing; TLS does.

An operator on the machine of a node has the credential but is no node. Such a proof has the run
BOOTSTRAP and, as its number, the time in microseconds. It is valid for BOOTSTRAP_SECONDS.
"""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import NamedTuple

from jetstream_protocol.types import WallUs

SCHEME = "Node "
BOOTSTRAP = 0
"""The run, and the target's incarnation, in the proof of a caller that is not a node."""
BOOTSTRAP_SECONDS = 60
NOT_VALID = "the node's proof is not valid here"
"""The refusal of a proof under another credential, or for another node."""
WINDOW = 4096
"""How far calls may overtake one another: more than a node has open to another one."""

_NAMED = re.compile(r"Node ([0-9]{1,10})/([0-9]{1,20})/([0-9]{1,20}):[0-9a-f]{64}", re.ASCII)


class Claim(NamedTuple):
    """The content of a proof that has not been checked yet."""

    sender: int
    run: int
    number: int


def proof(secret: bytes, method: str, claim: Claim, *, target: int, incarnation: int) -> str:
    """The value of the header `authorization`."""
    named = f"{claim.sender}/{claim.run}/{claim.number}"
    text = f"jetstream call/{method}/{named}/{target}/{incarnation}".encode()
    return f"{SCHEME}{named}:{hmac.new(secret, text, 'sha256').hexdigest()}"


def claim_of(value: str) -> Claim | None:
    """The claim in the value; None: it is not a proof."""
    found = _NAMED.fullmatch(value)
    return None if found is None else Claim(*map(int, found.groups()))


def check(secret: bytes, value: str, method: str, *, target: int, incarnation: int) -> bool:
    """Whether the proof is right. Always False without a credential: every caller could compute
    such a proof."""
    claim = claim_of(value)
    if claim is None or not secret:
        return False
    wanted = proof(secret, method, claim, target=target, incarnation=incarnation)
    return hmac.compare_digest(wanted.encode(), value.encode())


@dataclass(slots=True)
class _Used:
    """The numbers of one run of a sender. recent: bit n is set if `highest - n` was used."""

    run: int
    highest: int = 0
    recent: int = 0


class UsedProofs:
    """Remembers which valid proofs were used in this run of the target. Takes some bytes for each
    node of the cluster."""

    def __init__(self) -> None:
        self._by_sender: dict[int, _Used] = {}
        self._bootstrapped_us = 0

    def take(self, claim: Claim, now_us: WallUs) -> bool:
        """Mark the proof as used. Returns whether it was unused."""
        if claim.run == BOOTSTRAP:
            is_recent = abs(now_us - claim.number) <= BOOTSTRAP_SECONDS * 1_000_000
            if not is_recent or claim.number <= self._bootstrapped_us:
                return False
            self._bootstrapped_us = claim.number
            return True
        used = self._by_sender.get(claim.sender)
        if used is None or claim.run > used.run:
            used = self._by_sender[claim.sender] = _Used(claim.run)
        if claim.run < used.run:
            return False
        ahead = claim.number - used.highest
        if ahead > 0:
            used.recent = (used.recent << ahead if ahead < WINDOW else 0) | 1
            used.recent &= (1 << WINDOW) - 1
            used.highest = claim.number
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or used.recent & bit:
            return False
        used.recent |= bit
        return True
