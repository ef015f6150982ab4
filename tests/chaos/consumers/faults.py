"""What happens to the programs. What happens to the cluster is in tests/chaos/mixed/nemesis.py."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.chaos.consumers.cluster import ProgramCluster
from tests.chaos.consumers.streams import (
    CURSORS,
    INPUT,
    INSTANCES,
    LOOSE,
    MEMBERS,
    PARTS,
    PARTS_MAX,
    PROCESSORS,
    TWINS,
)
from tests.chaos.consumers.workers import Worker, Workers
from tests.chaos.mixed import nemesis
from tests.support.api import call

STEADY_MEMBERS = 2
CURSORS_STREAM = "__cursors"
INTERRUPTS = 5
INTERRUPT_SECONDS = (0.01, 0.5)
LOOSE_STREAMS = 3

OF_THE_CLUSTER = (
    "kill",
    "kill-some",
    "freeze",
    "restart",
    "cut",
    "nats",
    "nats-kill",
    "nats-freeze",
    "nats-route",
    "flap",
    "slow",
    "lossy",
    "clock",
    "full",
)
"""Those of the mixed chaos that need none of its streams, and damage no disk."""


@dataclass(slots=True)
class Target:
    cluster: ProgramCluster
    workers: Workers


def interrupt(target: Target, dice: Random) -> str:
    """Everybody, one after the other, some times."""
    for _ in range(INTERRUPTS):
        for worker in target.workers.alive():
            if dice.random() < 0.7:
                worker.signal(signal.SIGINT)
        time.sleep(dice.uniform(*INTERRUPT_SECONDS))
    return f"everybody interrupted up to {INTERRUPTS} times"


def kill_program(target: Target, dice: Random) -> str:
    worker = _any(target, dice)
    worker.signal(signal.SIGKILL)
    worker.process.wait()
    return f"killed: {_name(worker)}"


def freeze_program(target: Target, dice: Random) -> str:
    worker = _any(target, dice)
    worker.freeze()
    return f"frozen: {_name(worker)}"


def leave(target: Target, dice: Random) -> str:
    worker = _any(target, dice)
    worker.signal(signal.SIGTERM)
    return f"told to end: {_name(worker)}"


def join(target: Target, dice: Random) -> str:
    """One member more, for a while."""
    target.workers.start("member", MEMBERS)
    return "one member more"


def twin(target: Target, dice: Random) -> str:
    """Another process of a name, while the earlier one runs."""
    name = dice.choice(INSTANCES)
    target.workers.start("member", TWINS, name)
    return f"another process is instance {name!r}"


def grow(target: Target, dice: Random) -> str:
    cluster = target.cluster
    if cluster.parts >= PARTS_MAX:
        return "no more parts"
    done = _try(lambda: cluster.grow(cluster.parts + 1))
    return f"{PARTS} grows to {cluster.parts}: {done}"


def loose_streams(target: Target, dice: Random) -> str:
    """Streams that are created, purged and deleted beside those that are read."""
    name = f"{LOOSE}-{dice.randrange(LOOSE_STREAMS)}"
    api = target.cluster.api(dice.choice(target.cluster.nodes))
    ref = common_pb2.StreamRef(name=name)
    what = dice.choice(("create", "create", "purge", "delete"))
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: api.create(name, name, replicas=1),
        "purge": lambda: call(api.streams.PurgeStream, pb.PurgeStreamRequest(stream=ref)),
        "delete": lambda: api.delete(name),
    }
    return f"{what} {name}: {nemesis._try(calls[what])}"


def purge(target: Target, dice: Random) -> str:
    """Of what is read, also of what nobody has read yet."""
    cluster = target.cluster
    stream = dice.choice((INPUT, *cluster.part_names))
    share = dice.choice((0.3, 0.9, 1.0)) * dice.random()
    return f"{stream}: {_try(lambda: cluster.purge(stream, share))}"


def move_leader(target: Target, dice: Random) -> str:
    """Of what is read, or of the cursors: then the coordinator is another node."""
    stream = dice.choice((CURSORS_STREAM, CURSORS_STREAM, *target.cluster.stream_names))
    node = dice.choice(target.cluster.nodes)
    request = pb.TransferLeaderRequest(stream=common_pb2.StreamRef(name=stream), node_id=node)
    api = target.cluster.api(node)
    done = nemesis._try(lambda: call(api.cluster.TransferLeader, request))
    return f"leadership of {stream} to node {node}: {done}"


def kill_coordinator(target: Target, dice: Random) -> str:
    return _at_coordinator(target, target.cluster.kill, "killed")


def freeze_coordinator(target: Target, dice: Random) -> str:
    return _at_coordinator(target, target.cluster.freeze, "frozen")


def _at_coordinator(target: Target, work: Callable[[int], None], done: str) -> str:
    try:
        node = target.cluster.describe(CURSORS_STREAM).stream.leader
    except (AssertionError, JetstreamError) as error:
        return f"nobody leads the cursors: {error}"
    if not target.cluster.is_running(node):
        return "the leader of the cursors is gone already"
    work(node)
    return f"node {node}, which leads the cursors, {done}"


OF_PROGRAMS: dict[str, Callable[[Target, Random], str]] = {
    "interrupt": interrupt,
    "program-kill": kill_program,
    "program-freeze": freeze_program,
    "leave": leave,
    "join": join,
    "twin": twin,
    "grow": grow,
    "streams": loose_streams,
    "purge": purge,
    "move": move_leader,
    "coordinator-kill": kill_coordinator,
    "coordinator-freeze": freeze_coordinator,
}
FAULTS = (*OF_PROGRAMS, *OF_THE_CLUSTER)


def possible() -> tuple[str, ...]:
    """Those that there can be on this machine."""
    return tuple(name for name in FAULTS if name not in nemesis.impossible())


def do(name: str, target: Target, dice: Random) -> str:
    if name in OF_PROGRAMS:
        return OF_PROGRAMS[name](target, dice)
    return nemesis.FAULTS[name](target, dice)  # type: ignore[arg-type]  # It touches no members.


def heal(target: Target) -> None:
    target.cluster.heal()
    target.workers.thaw()
    keep(target.workers)


def keep(workers: Workers, *, sends: bool = True) -> None:
    """Start a program in place of each that has ended; end members that are too many."""
    wanted = [("cursor", name, "") for name in CURSORS]
    wanted += [("member", TWINS, name) for name in INSTANCES]
    wanted += [("sender", INPUT, ""), ("sender", PARTS, "")] if sends else []
    wanted += [("churner", MEMBERS, "")]
    wanted += [("member", MEMBERS, "")] * STEADY_MEMBERS + [("processor", PROCESSORS, "")] * 2
    running = workers.alive()
    for kind, reader, instance in wanted:
        found = next((each for each in running if _fits(each, kind, reader, instance)), None)
        if found is None:
            workers.start(kind, reader, instance)
        else:
            running.remove(found)
    for worker in running:
        if worker.journal.kind == "member" and worker.journal.reader == MEMBERS:
            worker.signal(signal.SIGTERM)


def _fits(worker: Worker, kind: str, reader: str, instance: str) -> bool:
    journal = worker.journal
    return (journal.kind, journal.reader) == (kind, reader) and (
        not instance or journal.instance == instance
    )


def _any(target: Target, dice: Random) -> Worker:
    return dice.choice(target.workers.alive())


def _name(worker: Worker) -> str:
    journal = worker.journal
    return f"process {journal.number}, {journal.kind} of {journal.reader} {journal.instance}"


def _try(work: Callable[[], object]) -> str:
    try:
        work()
    except JetstreamError as error:
        return str(error.code)
    return "done"
