"""The campaign against the metadata port: three real members, since a member that is alone opens no
port.

While they are attacked the members go on creating streams. In the end every member has every
acknowledged stream, all have the same state, and none has grown, died or logged a failure.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.chaos.metadata_group import SECRET, Group, NodeProcess, running_group
from tests.fuzz.attack import Target
from tests.fuzz.oracle import RSS_MIB_MAX, Violation
from tests.fuzz.raft import RaftAttack
from tests.fuzz.vitals import vitals

ACK_SECONDS_MAX = 60.0
PROPOSERS = 2


class GroupCampaign:
    """As `Campaign`: `run` says whether everything held, the report says what did not."""

    def __init__(self, seconds: float, seed: str, report: Callable[[str], None]) -> None:
        self.failure = ""
        self.steps: Counter[str] = Counter()
        self._seconds = seconds
        self._seed = seed
        self._report = report

    def run(self, folder: Path) -> bool:
        folder.mkdir(parents=True, exist_ok=True)
        with running_group(folder, compact_after_entries=500) as group:
            leader = group.leader()
            for node in group.nodes:
                node.say(f"propose {PROPOSERS}")
            try:
                self._attack(group)
                acknowledged = group.check()
            except (Violation, AssertionError, OSError) as error:
                self.failure = self.failure or f"{type(error).__name__}: {error}"
            else:
                same = "the same leader" if group.leader() is leader else "another leader"
                self._report(
                    f"metadata group: {self.steps.total()} steps, {acknowledged} acks, none lost, "
                    f"{same}"
                )
        if self.failure:
            self._report(f"FAILED: {self.failure}\nagain with: --port raft --seed {self._seed}")
        return not self.failure

    def _attack(self, group: Group) -> None:
        stop = threading.Event()
        workers = [
            threading.Thread(target=self._work, args=(node_id, address, secret, stop), daemon=True)
            for node_id, address in group.voters.items()
            for secret in (b"", SECRET.encode())
        ]
        for worker in workers:
            worker.start()
        ends = time.monotonic() + self._seconds
        acked_at = {node.node_id: time.monotonic() for node in group.nodes}
        acks = {node.node_id: 0 for node in group.nodes}
        while time.monotonic() < ends and not self.failure:
            time.sleep(0.5)
            for node in group.nodes:
                self._look(node)
                if node.counts["ack"] > acks[node.node_id]:
                    acks[node.node_id] = node.counts["ack"]
                    acked_at[node.node_id] = time.monotonic()
                if time.monotonic() - acked_at[node.node_id] > ACK_SECONDS_MAX:
                    raise Violation(f"member {node.node_id} has nothing acknowledged any more")
        stop.set()
        for worker in workers:
            worker.join(60)

    def _look(self, node: NodeProcess) -> None:
        if not node.is_running:
            raise Violation(f"member {node.node_id} has died")
        assert node._process is not None
        used = vitals(node._process.pid).rss_mib
        if used > RSS_MIB_MAX:
            raise Violation(f"member {node.node_id} uses {used:.0f} MiB")
        for line in node.stderr_path.read_text(errors="backslashreplace").splitlines():
            if "Traceback" in line or "[error" in line:
                raise Violation(f"member {node.node_id} says: {line}")

    def _work(self, node_id: int, address: str, secret: bytes, stop: threading.Event) -> None:
        host, _, port = address.rpartition(":")
        nowhere = ("127.0.0.1", 1)
        target = Target(nowhere, nowhere, nowhere, nowhere, (host, int(port)), "", "", (), nowhere)
        attack = RaftAttack(target, secret)
        number = 0
        while not stop.is_set():
            random = Random(json.dumps([self._seed, node_id, secret.decode(), number]))
            step = random.choice(attack.steps())
            self.steps[step.__name__] += 1
            try:
                step(random)
            except (OSError, EOFError):
                stop.wait(0.01)  # Turned away: that is its right.
            except Exception:  # noqa: BLE001  an attack that fails is a failed campaign
                self.failure = self.failure or f"in {step.__name__}:\n{traceback.format_exc()}"
                break
            number += 1
        attack.close()
