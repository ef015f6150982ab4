"""Histories of one log, drawn from a seed, and what is left of them when one is made shorter."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from logging import CRITICAL
from random import Random
from typing import NamedTuple

import structlog

from jetstream_protocol.errors import StorageError
from jetstream_server.log.commit_log import CommitLog
from tests.property.log_failures.compacted import BrokenPromiseError
from tests.property.log_failures.damaged import DamagedNode
from tests.property.log_failures.node import Node
from tests.simulation.disk import Killed

STEPS_MAX = 22
WEIGHTS = {
    "append": 26, "append_replica": 10, "flush": 12, "seal": 4, "truncate": 6, "advance": 8,
    "reset": 10, "salvage": 3, "delete": 1, "stop": 5, "kill": 7, "power": 8, "start": 5,
    "full": 2,
}  # fmt: skip
OF_RESETS = {
    "append": 22, "flush": 8, "reset": 24, "salvage": 4, "kill": 3, "power": 8, "stop": 2,
    "start": 4, "full": 5, "truncate": 2,
}  # fmt: skip
"""In a third of the histories, which are about beginning anew."""
OF_COMPACTION = {
    "append": 40, "append_replica": 8, "flush": 16, "seal": 6, "compact": 40, "truncate": 3,
    "advance": 3, "reset": 2, "salvage": 2, "stop": 3, "kill": 6, "power": 6, "start": 3, "full": 2,
}  # fmt: skip
"""In another third, which are about compaction and are longer."""
OF_CUTS = {
    "append": 22, "append_replica": 14, "flush": 16, "seal": 12, "truncate": 12, "advance": 4,
    "reset": 1, "salvage": 2, "stop": 2, "kill": 6, "power": 3, "start": 8,
}  # fmt: skip
REMEMBERED = {"append": "publish", "append_replica": "copy"}
"""In a seventh, batches have what the log must recognise when it comes again. A third of those is
about cutting it."""
OF_DAMAGE = {
    "append": 20, "append_replica": 8, "flush": 16, "seal": 6, "rot": 20, "inspect": 28,
    "repair": 40, "truncate": 8, "advance": 6, "reset": 2, "salvage": 2, "stop": 7, "kill": 6,
    "power": 5, "start": 3, "full": 3,
}  # fmt: skip
"""In a tenth of all, which are about bytes that go bad on the disk. In every second of them the
log is compacted, too."""
FILLED = ("append_replica", "append", "append", "append_replica", "append", "flush")
"""How they begin."""
AFTER_A_FAILURE = {"reset": 5, "salvage": 1, "": 3}
"""What is tried with a log that is offline, instead of most operations."""


class Step(NamedTuple):
    """One step. draw: seeds its own dice, so that it does the same if others are left out. fault:
    what befalls it, after `at` changes to the disk."""

    name: str
    draw: int
    fault: str = ""
    at: int = 0

    def __str__(self) -> str:
        return f"{self.name} {self.draw}" + (f" {self.fault} at {self.at}" if self.fault else "")


@dataclass(frozen=True)
class Failure:
    """A history that breaks a promise: its seed, its steps, and how."""

    seed: int
    steps: tuple[Step, ...]
    reason: str


def draw_steps(seed: int) -> tuple[Step, ...]:
    """The history of a seed."""
    dice = Random(f"log failures {seed}")
    share = dice.choice([0.15, 0.3, 0.5])
    faults = dice.choice(
        [
            ["kill"],
            ["fail"],
            ["kill", "fail", "fail", "failing", "fail and kill", "failing and kill"],
        ]
    )
    if dice.random() < 0.1:
        faults = [*faults, "reads"]
    weights = (OF_RESETS, OF_COMPACTION, WEIGHTS)[seed % 3]
    if seed % 7 == 3:
        weights = OF_CUTS if weights is WEIGHTS else weights
        weights = {REMEMBERED.get(name, name): weight for name, weight in weights.items()}
        weights["wait"] = 8
    elif seed % 9 == 7:
        weights = OF_DAMAGE | {"compact": 20} if seed % 2 else OF_DAMAGE
    is_longer = not weights.keys().isdisjoint(("compact", "wait", "rot"))
    steps_max = 2 * STEPS_MAX if is_longer else STEPS_MAX
    names = dice.choices(list(weights), list(weights.values()), k=dice.randint(3, steps_max))
    if "rot" in weights:
        names = [*FILLED, *names]
    steps = []
    for name in names:
        step = Step(name, dice.randrange(1 << 20))
        if dice.random() < share:
            at = int(dice.expovariate(0.2)) if dice.random() < 0.7 else dice.randrange(3)
            step = step._replace(fault=dice.choice(faults), at=at)
        steps.append(step)
    return tuple(steps)


def run(steps: tuple[Step, ...], tell: Callable[[str], None] = lambda _: None) -> str:
    """Run a history. Returns which promise was broken, or which error came out; "": none."""
    with _quiet():
        try:
            is_bad = any(step.name in ("rot", "inspect", "repair") for step in steps)
            node = DamagedNode(tell) if is_bad else Node(tell)
            for step in steps:
                tell(str(step))
                _do(node, step)
            _end(node, tell)
        except BrokenPromiseError as error:
            return str(error)
        except Exception:  # noqa: BLE001  whatever it is, it is told
            return traceback.format_exc()
    return ""


def run_seed(seed: int) -> Failure | None:
    """Run the history of a seed; None: it breaks no promise."""
    steps = draw_steps(seed)
    reason = run(steps)
    return Failure(seed, steps, reason) if reason else None


def shortened(failure: Failure) -> Failure:
    """The same failure, if possible with fewer steps and faults."""
    steps, is_shorter = failure.steps, True
    while is_shorter:
        is_shorter = False
        for shorter in _shorter(steps):
            reason = run(shorter)
            if reason:
                steps, is_shorter = shorter, True
                failure = replace(failure, steps=shorter, reason=reason)
                break
    return failure


def story(seed: int, steps: tuple[Step, ...] | None = None) -> str:
    """What the steps of a seed, or these, do."""
    lines: list[str] = []
    reason = run(draw_steps(seed) if steps is None else steps, lines.append)
    return "\n".join([f"seed {seed}:", *lines, reason or "nothing was broken", ""])


def _shorter(steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    for at in range(len(steps)):
        yield steps[:at] + steps[at + 1 :]
    for at, step in enumerate(steps):
        if step.fault:
            yield (*steps[:at], step._replace(fault="", at=0), *steps[at + 1 :])


def _do(node: Node, step: Step) -> None:
    dice = Random(step.draw)
    name = step.name
    if name == "kill":
        node.killed()
    elif name == "power":
        node.lost_power(dice)
    elif name == "rot" and isinstance(node, DamagedNode):
        node.rot(dice)
    elif name == "full":
        node.disk.full = not node.disk.full
        node.is_sound = False
    else:
        if name != "start" and node.log is None:
            node.start(Random(1))
        try:
            _befall(node, step)
            _operate(node, name, dice)
            node.note_failure()
        except Killed:
            node.killed()
        node.disk.repair()


def _befall(node: Node, step: Step) -> None:
    disk, fault = node.disk, step.fault
    disk.torn = Random(step.draw)
    if not fault:
        return
    if "kill" in fault:
        disk.fuse = step.at
    if "fail" in fault:
        disk.fails_in = step.draw % (step.at + 1) if "kill" in fault else step.at
        disk.fails_for = 1000 if "failing" in fault else 1
        node.is_sound = False
    if fault == "reads":
        disk.reads_fail = 1 + step.draw % 2
        node.is_sound = False


def _operate(node: Node, name: str, dice: Random) -> None:
    if name == "start":
        node.replica = None  # It was killed.
        node.start(dice)
        return
    if name in ("stop", "delete", "reset", "salvage"):
        pass
    elif node.log is not None and node.online is None:
        name = dice.choices(list(AFTER_A_FAILURE), list(AFTER_A_FAILURE.values()))[0]
    if node.log is None or not name:
        return
    if name == "reset" and not _may_be_reset(node.log):
        return
    node.epoch += dice.randrange(8) == 0
    getattr(node, name)(dice)


def _may_be_reset(log: CommitLog) -> bool:
    """Not if it was not opened for want of something else than its device."""
    try:
        log.health.require_recoverable()
    except StorageError:
        return False
    return True


def _end(node: Node, tell: Callable[[str], None]) -> None:
    """The disk works again: the log is begun anew if it must be, and then keeps what it flushes."""
    node.disk.full = False
    for name in ("start", "append", "flush", "power", "start"):
        tell(name)
        if name == "append" and isinstance(node, DamagedNode):
            node.heal()
        if name == "append" and (node.online is None or node.is_suspect):
            node.reset(Random(2))
        if name == "append" and node.online is None:
            raise BrokenPromiseError("it could not be begun anew")
        if name == "power":
            node.lost_power(Random(len(node.epochs)))
        elif name == "start":
            node.replica = None
            node.start(Random(1))
        else:
            getattr(node, name)(Random(3))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the log lines of the node."""
    config = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**config)
