"""Attack real servers on every port and check that they stay whole.

    python -m tests.fuzz --minutes 1 [--port grpc|data|http|nats|raft|all] [--seed S]
                         [--tls] [--strangers | --known | --secured]

Exit code 0 when everything held (tests/fuzz/oracle.py says what), 1 otherwise. Progress every ten
seconds; a failure names the seed and the last steps. With all ports, the metadata port, which is
attacked by itself at a group of three, gets a tenth of the time. With --tls gRPC, data plane and
HTTP speak TLS, and so do two of three connections of the attackers.

With --strangers security is on, and the attackers have no token; with --known they have one that
only reads (tests/fuzz/strangers.py). --secured is the whole of it: strangers and the known, each
with TLS off and on, a quarter of the time each.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

from tests.fuzz.campaign import ATTACKS, Campaign, scratch_folder
from tests.fuzz.metadata_group import GroupCampaign
from tests.fuzz.strangers import attack

RAFT = "raft"
RAFT_SHARE = 0.1


def tell(text: str) -> None:
    print(text, flush=True)


def run(
    port: str, seconds: float, seed: str, workers: int, folder: Path, *, tls: bool = False
) -> bool:
    """Whether everything held."""
    ports = tuple(ATTACKS) if port == "all" else (port,)
    raft_seconds = seconds * RAFT_SHARE if port == "all" else seconds
    if port in (RAFT, "all") and not GroupCampaign(raft_seconds, seed, tell).run(folder / RAFT):
        return False
    if port == RAFT:
        return True
    left = seconds - raft_seconds if port == "all" else seconds
    return Campaign(ports, left, seed, workers, tls, tell).run(folder)


def all_secured(folder: Path, seconds: float, seed: str) -> bool:
    """Whether everything held. Each kind of attacker and port gets the given seconds."""
    return all(
        attack(folder / f"{known}-{tls}", seconds, seed, tell, tls=tls, known=known)
        for known in (False, True)
        for tls in (False, True)
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--port", choices=(*ATTACKS, RAFT, "all"), default="all")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--workers", type=int, default=1, help="attackers of each kind at a time")
    parser.add_argument("--tls", action="store_true", help="the ports speak TLS")
    who = parser.add_mutually_exclusive_group()
    who.add_argument("--strangers", action="store_true", help="security is on")
    who.add_argument("--known", action="store_true", help="the same, with a token that only reads")
    who.add_argument("--secured", action="store_true", help="both, with TLS off and on")
    arguments = parser.parse_args()
    begun = time.monotonic()
    tell(f"seed {arguments.seed}, port {arguments.port}")
    seconds = arguments.minutes * 60
    with scratch_folder() as folder:
        if arguments.secured:
            held = all_secured(folder, seconds / 4, arguments.seed)
        elif arguments.strangers or arguments.known:
            held = attack(
                folder, seconds, arguments.seed, tell, tls=arguments.tls, known=arguments.known
            )
        else:
            held = run(
                arguments.port,
                seconds,
                arguments.seed,
                arguments.workers,
                folder,
                tls=arguments.tls,
            )
    tell(f"{'clean' if held else 'FAILED'} after {time.monotonic() - begun:.0f} s")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
