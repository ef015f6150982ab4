"""A server with security on, attacked by strangers or by a principal that may only read: nothing
changes, memory is bounded, and the administrator is served.

The attacks are those of the other campaigns, with a wrong credential on the metadata port; attacks
on the handshake of TLS, also where the ports are plain; and crowds: more connections than a port
keeps of strangers, that stay in any state of their handshakes. All of them on every port. The
administrator looks at the server before and afterwards, and is served meanwhile.
"""

from __future__ import annotations

import math
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import grpc

from jetstream_client import Client
from jetstream_protocol.errors import JetstreamError
from tests.fuzz.attack import Attack, Step, Target, plain, secured
from tests.fuzz.campaign import ATTACKS, BULK, VICTIMS
from tests.fuzz.oracle import CONTROL, RSS_MIB_MAX
from tests.fuzz.raft import RaftAttack
from tests.fuzz.tls import TlsAttack
from tests.support.secured import (
    SecuredNode,
    SecuredServer,
    SecuredTlsNode,
    SecuredTlsServer,
    administered,
)
from tests.support.strangers import STRANGERS

PORTS = ("grpc", "data", "http")
RECORDS = 50
FAILURES = (
    "request_failed", "internal_error", "connection_failed", "metadata_failed",
    "metadata_thread_error", "metadata_connection_failed",
)  # fmt: skip
CROWD_MAX = 200
PATIENCE_SECONDS = 60.0
"""For the administrator: what attackers have left behind may take a while to end."""

T = TypeVar("T")
Kind = Callable[[Target], Attack]


def attack(
    folder: Path,
    seconds: float,
    seed: str,
    report: Callable[[str], None],
    *,
    tls: bool = False,
    known: bool = False,
) -> bool:
    """Whether everything held; the report says what did not. known: the attackers have a token, by
    which they may read everything."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "secured"
    starting = SecuredTlsNode(data) if tls else SecuredNode(data)
    with administered(starting) as server, server.client(timeout=PATIENCE_SECONDS) as admin:
        admin.create_stream(BULK, BULK)
        for name in (CONTROL, *VICTIMS):
            admin.create_stream(name, f"{name}.>")
        for number in range(RECORDS):
            admin.publish(f"{CONTROL}.x", b"%d" % number)
        token = ""
        if known:
            token = admin.create_token("user:known").text
            admin.add_acl("user:known", "read", subject=">")
        before = _held(admin)
        kinds: list[Kind] = [kind for port in PORTS for kind in ATTACKS[port]]
        kinds.append(partial(RaftAttack, secret=b"not the credential"))
        kinds += [TlsAttack, CrowdAttack]
        target = _target(server, token)
        with _asking(server) as slowest:
            steps, peak_mib = _attacked(server.pid, target, kinds, seconds, seed)
        wrong = [each for each in FAILURES if f'"{each}"' in server.log_text]
        if slowest[0] > PATIENCE_SECONDS:
            wrong.append("the administrator was not answered")
        if _patiently(partial(_held, admin)) != before:
            wrong.append("streams, records, tokens or rules are others")
        if peak_mib > RSS_MIB_MAX:
            wrong.append(f"{peak_mib} MiB of memory")
        if token:
            with server.client(token, PATIENCE_SECONDS) as reader:
                if len(_patiently(partial(reader.fetch, CONTROL))) != RECORDS:
                    wrong.append("the token does not read")
            if token in server.log_text:
                wrong.append("the token is in the log")
        who = f"{'a known principal' if known else 'strangers'}, TLS {'on' if tls else 'off'}"
        report(
            f"{who}: {steps} steps, at most {peak_mib} MiB, an answer after {slowest[0]:.1f} s at "
            f"most; wrong: {wrong or 'nothing'}"
        )
        return not wrong


class CrowdAttack(Attack):
    """Connections that stay, each in some state of its handshake."""

    lingering_max = 4 * CROWD_MAX

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._ports = (target.grpc, target.data, target.http, target.raft)

    def steps(self) -> Sequence[Step]:
        return (self.crowd, self.mixed_crowd)

    def crowd(self, random: Random) -> None:
        """All of them in the same state, on one port."""
        port, what = random.choice(self._ports), random.choice(list(STRANGERS.values()))
        for _ in range(random.choice((74, CROWD_MAX))):
            sock = plain(port)
            self.linger(random, sock)
            what(sock)

    def mixed_crowd(self, random: Random) -> None:
        for _ in range(random.choice((74, CROWD_MAX))):
            sock = plain(random.choice(self._ports))
            self.linger(random, sock)
            random.choice(list(STRANGERS.values()))(sock)


@contextmanager
def _asking(server: SecuredServer) -> Iterator[list[float]]:
    """Meanwhile the administrator asks again and again: the longest that an answer has taken, on
    processors that the attackers use, too."""
    slowest, stop = [0.0], threading.Event()

    def ask() -> None:
        with server.client(timeout=PATIENCE_SECONDS) as admin:
            while not stop.wait(0.2):
                began = time.monotonic()
                try:
                    _patiently(admin.list_streams)
                except JetstreamError:
                    slowest[0] = math.inf
                    return
                slowest[0] = max(slowest[0], time.monotonic() - began)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield slowest
    finally:
        stop.set()
        asking.join(PATIENCE_SECONDS)
        if asking.is_alive():
            slowest[0] = math.inf


def _held(admin: Client) -> object:
    records = [message.value for message in admin.fetch(CONTROL)]
    tokens = [token.id for token in admin.list_tokens()]
    return admin.list_streams(), records, admin.list_acls(), tokens


def _patiently(look: Callable[[], T]) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return look()
        except JetstreamError as error:
            if not error.retriable or time.monotonic() > deadline:
                raise


def _attacked(
    pid: int, target: Target, kinds: list[Kind], seconds: float, seed: str
) -> tuple[int, int]:
    """How many steps there were, and how many MiB the server held at most."""
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

    workers = [threading.Thread(target=work, args=(kind(target),), daemon=True) for kind in kinds]
    for worker in workers:
        worker.start()
    ends, peak_mib = time.monotonic() + seconds, 0
    while time.monotonic() < ends and peak_mib <= RSS_MIB_MAX:  # A machine must survive it, too.
        time.sleep(0.2)
        peak_mib = max(peak_mib, _rss_mib(pid))
    stop.set()
    for worker in workers:
        worker.join(60)
    return steps[0], peak_mib


def _target(server: SecuredServer, token: str) -> Target:
    host, base = "127.0.0.1", server.port_base
    ca = None
    if isinstance(server, SecuredTlsServer):
        ca = server.authority.certificate_file.read_bytes()
        context = ssl.create_default_context(cadata=ca.decode())
        context.set_alpn_protocols(["h2"])
        secured.update({(host, base + port): context for port in range(4)})
    return Target(
        grpc=(host, base), data=(host, base + 1), raft=(host, base + 2), http=(host, base + 3),
        nats=(host, base + 4), control=CONTROL, bulk=BULK, victims=VICTIMS, calls=(host, base),
        token=token, ca=ca,
    )  # fmt: skip


def _rss_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024
