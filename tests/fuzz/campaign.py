"""One campaign: a real server, its attackers, its oracle, and what came of it.

Each step of an attack draws from its own generator, seeded with (seed, attack, worker, number), so
a step can be had again, whatever ran beside it.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random

import grpc

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.logfiles.verify import verify
from tests.fuzz.attack import Attack, Target, secured
from tests.fuzz.data_plane import DataPlaneAttack
from tests.fuzz.grpc_calls import GrpcCalls
from tests.fuzz.grpc_wire import GrpcWire
from tests.fuzz.http import HttpAttack
from tests.fuzz.jetstream_api import API_DOMAIN, ApiAttack
from tests.fuzz.nats import EnvelopeAttack, NatsAttack
from tests.fuzz.oracle import CONTROL, Oracle, Violation, metric
from tests.support.api import Api, RawNats
from tests.support.server import ServerProcess, free_port_base
from tests.support.tls_tunnel import PORTS, TunnelledServer

ATTACKS: dict[str, tuple[type[Attack], ...]] = {
    "grpc": (GrpcCalls, GrpcWire),
    "data": (DataPlaneAttack,),
    "http": (HttpAttack,),
    "nats": (NatsAttack, EnvelopeAttack, ApiAttack),
}
BULK = "bulk"
BULK_MIB = 32
VICTIMS = tuple(f"victim-{index}" for index in range(4))
LOG_BYTES_MAX = 4 << 30
"""Beyond it the victims are emptied: a campaign may be long, a disk is not."""


@dataclass(slots=True)
class Campaign:
    """Settings, and after `run` the outcome."""

    ports: tuple[str, ...]
    seconds: float
    seed: str
    workers: int = 1
    tls: bool = False
    report: Callable[[str], None] = print
    steps: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    recent: deque[str] = field(default_factory=lambda: deque(maxlen=40))
    failure: str = ""

    def run(self, folder: Path) -> bool:
        """Whether everything held; the report says what did not."""
        server = _started(folder / "data", self.tls)
        try:
            self.report(next(x for x in server.log_text.splitlines() if '"ingest_form"' in x))
            oracle = Oracle(server)
            oracle.prepare()
            target = _prepare_target(server)
            try:
                self._attack(oracle, target)
                oracle.finish()
            except (Violation, OSError, EOFError, grpc.RpcError, JetstreamError) as error:
                self.failure = self.failure or f"{type(error).__name__}: {error}"
            self._say_all(oracle)
            if not self.failure and (code := server.stop()) != 0:
                self.failure = f"the server stopped with exit code {code}"
                self.report(f"FAILED: {self.failure}: {server.log_text[-2000:]}")
            if not self.failure and (found := list(islice(verify(folder / "data"), 5))):
                self.failure = f"what was stored is not sound: {found}"
                self.report(f"FAILED: {self.failure}\nagain with: --seed {self.seed}")
        finally:
            server.kill()
        return not self.failure

    def _attack(self, oracle: Oracle, target: Target) -> None:
        stop = threading.Event()
        workers = [
            threading.Thread(target=self._work, args=(kind(target), number, stop), daemon=True)
            for port in self.ports
            for kind in ATTACKS[port]
            for number in range(self.workers)
        ]
        oracle.watch()
        for worker in workers:
            worker.start()
        ends = time.monotonic() + self.seconds
        say_next = time.monotonic() + 10
        while time.monotonic() < ends and not oracle.violation and not self.failure:
            time.sleep(0.1)
            if time.monotonic() >= say_next:
                say_next += 10
                self._say(oracle, ends)
                _empty_victims(oracle.server)
        stop.set()
        self.failure = "\n".join(filter(None, (oracle.violation, self.failure)))
        for worker in workers:
            worker.join(60)

    def _work(self, attack: Attack, worker: int, stop: threading.Event) -> None:
        kind = type(attack).__name__
        number = 0
        while not stop.is_set():
            random = Random(f"{self.seed}/{kind}/{worker}/{number}")
            step = random.choice(attack.steps())
            name = f"{kind}.{step.__name__}"
            self.recent.append(f"{name} #{worker}/{number}")
            self.steps[name] += 1
            try:
                step(random)
            except (OSError, EOFError, grpc.RpcError) as error:
                stop.wait(0.01)
                self.refused[f"{name}: {type(error).__name__}"] += 1
            except Exception:  # noqa: BLE001  an attack that fails is a failed campaign
                self.failure = self.failure or f"in {name}:\n{traceback.format_exc()}"
                break
            number += 1
        attack.close()

    def _say(self, oracle: Oracle, ends: float) -> None:
        publisher = oracle.publisher
        self.report(
            f"{ends - time.monotonic():5.0f} s to go: {self.steps.total()} steps, "
            f"{len(publisher.acknowledged)} acks (worst {publisher.worst_seconds:.2f} s), "
            f"{oracle.reads} reads (worst {oracle.worst_read_seconds:.2f} s), "
            f"{oracle.rss_mib:.0f} MiB (most {oracle.peak_mib:.0f})"
        )

    def _say_all(self, oracle: Oracle) -> None:
        self._say(oracle, time.monotonic())
        self.report(f"steps: {json.dumps(dict(sorted(self.steps.items())), indent=1)}")
        self.report(f"log events: {dict(oracle.log.events.most_common())}")
        if self.failure:
            self.report("last steps:\n  " + "\n  ".join(self.recent))
            self.report(f"FAILED: {self.failure}\nagain with: --seed {self.seed}")


def _started(data: Path, tls: bool) -> ServerProcess:
    server = TunnelledServer(data) if tls else ServerProcess(data)
    leaf = {"servers": [f"nats://127.0.0.1:{free_port_base(1)}"]}
    server.environment |= {
        "JETSTREAM_NATS__API_DOMAIN": API_DOMAIN,
        "JETSTREAM_NATS__LEAF": json.dumps(leaf),
    }
    server.start()
    if not isinstance(server, TunnelledServer):
        return server
    for port in PORTS:
        secured["127.0.0.1", server.port_base + port] = server.context
    return server


def _prepare_target(server: ServerProcess) -> Target:
    api = Api(server.grpc)
    api.create(BULK, BULK)
    for name in VICTIMS:
        api.create(name, f"{name}.>")
    api.close()
    nats = RawNats(server.nats)
    nats.subscribe("_INBOX.bulk")
    for _ in range(BULK_MIB * 2):
        nats.publish(BULK, bytes(500_000), "_INBOX.bulk")
        nats.message()
    nats.sock.sendall(b"PUB bulk 1\r\nx\r\n" * 100_000)
    nats.ping()
    nats.close()
    host = "127.0.0.1"
    base = server.port_base
    return Target(
        grpc=(host, base), data=(host, base + 1), raft=(host, base + 2), http=(host, base + 3),
        nats=(host, base + 4), control=CONTROL, bulk=BULK, victims=VICTIMS,
        calls=(host, int(server.grpc.rpartition(":")[2])),
    )  # fmt: skip


def _empty_victims(server: ServerProcess) -> None:
    """Make room: what was stored in the streams under attack proves nothing."""
    if metric(server, "jetstream_log_bytes") < LOG_BYTES_MAX:
        return
    api = Api(server.grpc)
    for name in VICTIMS:
        try:
            api.delete(name)
            api.create(name, f"{name}.>")
        except JetstreamError:
            continue  # An attacker is just doing the same.
    api.close()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="jetstream-fuzz-") as name:
        yield Path(name)
