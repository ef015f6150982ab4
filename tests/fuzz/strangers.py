"""Strangers at a server with security on: nothing changes, and memory is bounded.

The attacks are those of the other campaigns, which have no token; the administrator looks at the
server before and afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import grpc

from jetstream_client import Client
from jetstream_protocol.errors import JetstreamError
from tests.fuzz.attack import Attack, Target
from tests.fuzz.campaign import ATTACKS, BULK, VICTIMS
from tests.fuzz.oracle import CONTROL, RSS_MIB_MAX
from tests.support.secured import SecuredServer, secured_server

PORTS = ("grpc", "data", "http")
RECORDS = 50
FAILURES = ("request_failed", "internal_error", "connection_failed")


def attack(folder: Path, seconds: float, seed: str, report: Callable[[str], None]) -> bool:
    """Whether everything held; the report says what did not."""
    with secured_server(folder / "secured") as server, server.client() as admin:
        admin.create_stream(BULK, BULK)
        for name in (CONTROL, *VICTIMS):
            admin.create_stream(name, f"{name}.>")
        for number in range(RECORDS):
            admin.publish(f"{CONTROL}.x", b"%d" % number)
        before = _held(admin)
        steps, peak_mib = _attacked(server, seconds, seed)
        wrong = [each for each in FAILURES if each in server.log_text]
        if _held(admin) != before:
            wrong.append("streams, records, tokens or rules are others")
        if peak_mib > RSS_MIB_MAX:
            wrong.append(f"{peak_mib} MiB of memory")
        report(f"strangers: {steps} steps, at most {peak_mib} MiB; wrong: {wrong or 'nothing'}")
        return not wrong


def _held(admin: Client) -> object:
    records = [message.value for message in admin.fetch(CONTROL)]
    return admin.list_streams(), records, admin.list_acls(), admin.list_tokens()


def _attacked(server: SecuredServer, seconds: float, seed: str) -> tuple[int, int]:
    """How many steps there were, and how many MiB the server held at most."""
    target = _target(server)
    stop, steps = threading.Event(), [0]

    def work(attack: Attack) -> None:
        number = 0
        while not stop.is_set():
            random = Random(f"{seed}/{type(attack).__name__}/{number}")
            number += 1
            try:
                random.choice(attack.steps())(random)
            except (OSError, EOFError, grpc.RpcError, JetstreamError):
                stop.wait(0.01)
        steps[0] += number
        attack.close()

    kinds = [kind for port in PORTS for kind in ATTACKS[port]]
    workers = [threading.Thread(target=work, args=(kind(target),), daemon=True) for kind in kinds]
    for worker in workers:
        worker.start()
    ends, peak_mib = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        time.sleep(0.2)
        peak_mib = max(peak_mib, _rss_mib(server.pid))
    stop.set()
    for worker in workers:
        worker.join(30)
    return steps[0], peak_mib


def _target(server: SecuredServer) -> Target:
    host, base = "127.0.0.1", server.port_base
    return Target(
        grpc=(host, base), data=(host, base + 1), raft=(host, base + 2), http=(host, base + 3),
        nats=(host, base + 4), control=CONTROL, bulk=BULK, victims=VICTIMS, calls=(host, base),
    )  # fmt: skip


def _rss_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024
