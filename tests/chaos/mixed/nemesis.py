"""The faults of a cluster and their order, drawn from a seed alone.

A step is one fault or two at once, which last some seconds; then everything is healed. Faults that
damage a disk wait until the cluster is whole, and the next step waits until it is whole again: one
damaged disk at a time. Other faults may hit all nodes at once. Then no node answers for a while,
and still nothing acknowledged may be lost.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.chaos.damage.harm import FILE_WAYS
from tests.chaos.damage.targets import candidates
from tests.chaos.damage.words import says_what_to_do
from tests.chaos.mixed.cluster import NATS_SERVERS, RESERVE_BYTES, MixedCluster
from tests.chaos.mixed.streams import STREAMS
from tests.support import small_disk
from tests.support.api import call
from tests.support.fault_network import Bad
from tests.support.group_workers import GroupWorkers

HOLD_SECONDS = (0.5, 6.0)
PAUSE_SECONDS = (0.0, 3.0)
CLOCK_JUMP_US = 2 * 3_600_000_000
FLAPS = 4
DELAY_SECONDS = (0.002, 0.15)
BYTES_PER_SECOND = (50e3, 2e6)
LOST = (0.01, 0.2)
RESET = (0.001, 0.05)
"""Shares of the pieces that a link carries; a busy one carries hundreds a second."""
FLAP_SECONDS = (0.1, 0.8)
WORKERS = 3
WORKERS_MAX = 6
"""More than the group has streams: some members then wait for one."""
DISK_FAULTS = ("fsync .log 1", "write .log 1", "pread .log 1", "write_atomic checkpoint 2")
DAMAGED_FILES = ("segment_sealed", "segment_active", "index", "checkpoint", "producers")
SIDE_STREAMS = 4
VOTERS_MIN = 3
FULL_SECONDS = (0.0, 5.0)
"""A node looks once a second how much room there is; then leaderships go to others."""


@dataclass(slots=True)
class Target:
    """What a fault can reach. side: streams that come and go, by name, with their subjects."""

    cluster: MixedCluster
    workers: GroupWorkers
    side: int = 0


Fault = Callable[[Target, Random], str]
"""Begins it, or does all of it; returns what it did. `MixedCluster.heal` ends what lasts."""


@dataclass(frozen=True, slots=True)
class Step:
    """faults: names. hold, pause: seconds, during and after it. waits: until all is whole."""

    faults: tuple[str, ...]
    hold: float
    pause: float
    waits: bool
    dice: int


def steps(seed: str, faults: tuple[str, ...]) -> Callable[[int], Step]:
    """The n-th step of a run depends on the seed and n alone."""

    def step(number: int) -> Step:
        dice = Random(f"{seed}/step {number}")
        first = dice.choice(faults)
        rest = [name for name in faults if name != first and name not in ALONE]
        chosen = [first]
        if first not in ALONE and rest and dice.random() < 0.4:
            chosen.append(dice.choice(rest))
        return Step(
            tuple(chosen),
            dice.uniform(*HOLD_SECONDS),
            dice.uniform(*PAUSE_SECONDS),
            dice.random() < 0.5,
            dice.getrandbits(64),
        )

    return step


# Processes.


def kill(target: Target, dice: Random) -> str:
    node = _any_running(target, dice)
    target.cluster.kill(node)
    return f"node {node} killed"


def kill_some(target: Target, dice: Random) -> str:
    nodes = dice.sample(target.cluster.nodes, dice.randint(2, len(target.cluster.nodes)))
    for node in nodes:
        target.cluster.kill(node)
    return f"nodes {sorted(nodes)} killed"


def freeze(target: Target, dice: Random) -> str:
    node = _any_running(target, dice)
    if not target.cluster.is_running(node):
        return "no node runs that could be frozen"
    target.cluster.freeze(node)
    return f"node {node} frozen"


def restart_each(target: Target, dice: Random) -> str:
    nodes = dice.sample(target.cluster.nodes, len(target.cluster.nodes))
    for node in nodes:
        target.cluster.thaw(node)
        target.cluster.stop(node)
        time.sleep(dice.uniform(0, 1))
        target.cluster.launch(node)
        time.sleep(dice.uniform(0, 2))
    return f"nodes {nodes} restarted one after the other"


# Links.


def cut(target: Target, dice: Random) -> str:
    node = dice.choice(target.cluster.nodes)
    kinds = dice.choice(((), ("raft",), ("data",), ("grpc",)))
    way = dice.choice(("both", "out", "in"))
    if way == "in":
        target.cluster.deafen(node, *kinds)
    else:
        target.cluster.isolate(node, *kinds, both=way == "both")
    return f"node {node} cut off: {way}, {', '.join(kinds) or 'all ports'}"


def cut_from_nats(target: Target, dice: Random) -> str:
    nodes = dice.sample(target.cluster.nodes, dice.randint(1, 2))
    servers = dice.sample(NATS_SERVERS, dice.randint(1, len(NATS_SERVERS)))
    for node in nodes:
        target.cluster.cut_from_nats(node, *servers)
    return f"nodes {sorted(nodes)} cut off from NATS servers {sorted(servers)}"


def flap(target: Target, dice: Random) -> str:
    node = dice.choice(target.cluster.nodes)
    for _ in range(FLAPS):
        target.cluster.isolate(node)
        time.sleep(dice.uniform(*FLAP_SECONDS))
        target.cluster.network.heal()
        time.sleep(dice.uniform(*FLAP_SECONDS))
    return f"links of node {node} came and went {FLAPS} times"


def slow_links(target: Target, dice: Random) -> str:
    """All of a node's, or those between the NATS servers."""
    least = dice.uniform(*DELAY_SECONDS)
    bad = Bad((least, least * dice.uniform(1, 3)), dice.uniform(*BYTES_PER_SECOND))
    where = _spoil(target, dice, bad)
    return f"{where}: {least * 1000:.0f} ms and more, {bad.bytes_per_second / 1000:.0f} kB/s"


def lossy_links(target: Target, dice: Random) -> str:
    bad = Bad(lost=dice.uniform(*LOST), reset=dice.uniform(*RESET))
    where = _spoil(target, dice, bad)
    return f"{where}: {bad.lost:.0%} come later, {bad.reset:.1%} reset the connection"


def _spoil(target: Target, dice: Random, bad: Bad) -> str:
    number = dice.randrange(-1, len(target.cluster.nodes))
    if number < 0:
        target.cluster.spoil_nats_routes(bad)
        return "links between NATS servers"
    target.cluster.spoil(target.cluster.nodes[number], bad)
    return f"links of node {target.cluster.nodes[number]}"


# NATS servers.


def kill_nats(target: Target, dice: Random) -> str:
    server = dice.choice(NATS_SERVERS)
    target.cluster.kill_nats(server)
    return f"NATS server {server} killed"


def freeze_nats(target: Target, dice: Random) -> str:
    server = dice.choice(NATS_SERVERS)
    target.cluster.freeze_nats(server)
    return f"NATS server {server} frozen"


def cut_nats_route(target: Target, dice: Random) -> str:
    one, other = dice.sample(NATS_SERVERS, 2)
    target.cluster.cut_nats_route(one, other)
    return f"no route between NATS servers {one} and {other}"


# Clocks and disks.


def set_clock(target: Target, dice: Random) -> str:
    node = dice.choice(target.cluster.nodes)
    off = dice.randint(-CLOCK_JUMP_US, CLOCK_JUMP_US)
    target.cluster.set_clock(node, off)
    return f"wall clock of node {node} off by {off / 1e6:.0f} s"


def break_disk(target: Target, dice: Random) -> str:
    node, what = dice.choice(target.cluster.nodes), dice.choice(DISK_FAULTS)
    target.cluster.break_disk(node, what)
    return f"node {node}: {what} fails"


def fill_disk(target: Target, dice: Random) -> str:
    """Of one node or of all: below the reserve, or to the last page, metadata included."""
    cluster = target.cluster
    nodes = cluster.nodes if dice.random() < 0.3 else [dice.choice(cluster.nodes)]
    free_bytes = dice.choice((RESERVE_BYTES // 2, 0))
    for node in nodes:
        cluster.fill_disk(node, free_bytes)
    time.sleep(dice.uniform(*FULL_SECONDS))
    return f"disks of nodes {sorted(nodes)}: {free_bytes} bytes free"


def damage_file(target: Target, dice: Random) -> str:
    """A file of a node that is stopped, or that runs."""
    cluster, node = target.cluster, dice.choice(target.cluster.nodes)
    runs = dice.random() < 0.5
    if not runs:
        cluster.kill(node)
    kind = dice.choice(DAMAGED_FILES)
    found = candidates(cluster.data(node), kind)
    done = None
    if found:
        path = dice.choice(found)
        ways = ("flip",) if runs else tuple(sorted(FILE_WAYS))
        done = FILE_WAYS[dice.choice(ways)](path, path, dice)
    start_as_told(cluster, node)
    where = path.relative_to(cluster.data(node)) if found else kind
    return f"node {node} {'running' if runs else 'killed'}: {where}: {done or 'nothing changed'}"


def lose_folder(target: Target, dice: Random) -> str:
    node = dice.choice(target.cluster.nodes)
    target.cluster.kill(node)
    shutil.rmtree(target.cluster.data(node))
    start_as_told(target.cluster, node)
    return f"node {node} lost its data folder"


def start_as_told(cluster: MixedCluster, node: int) -> None:
    """Start a node whose disk was damaged, and do what it asks for, as an operator would."""
    for attempt in range(3):
        if not cluster.is_running(node):
            cluster.launch(node)
        time.sleep(1.0)
        deadline = time.monotonic() + 20.0
        while cluster.is_running(node) and time.monotonic() < deadline:
            if not cluster.cluster.why_not_ready(node):
                return
            time.sleep(0.1)
        if cluster.is_running(node):
            return  # It waits for others, who are healed later.
        words = cluster.last_words(node)
        if says_what_to_do(words):
            cluster.data(node).rename(
                Path(f"{cluster.data(node)}-moved-{attempt}-{time.time_ns()}")
            )


# What operators and users do.


def transfer(target: Target, dice: Random) -> str:
    stream, node = dice.choice(STREAMS).name, dice.choice(target.cluster.nodes)
    ref = common_pb2.StreamRef(name=stream)
    request = pb.TransferLeaderRequest(stream=ref, node_id=node)
    done = _try(lambda: call(target.cluster.api(node).cluster.TransferLeader, request))
    return f"leadership of {stream} to node {node}: {done}"


def reassign(target: Target, dice: Random) -> str:
    """Often, a node that is left out observes."""
    cluster, stream = target.cluster, dice.choice(STREAMS).name
    order = dice.sample(cluster.nodes, len(cluster.nodes))
    nodes, observers = sorted(order[:3]), sorted(order[3 : 3 + dice.choice((0, 1, 1))])
    ref = common_pb2.StreamRef(name=stream)
    request = pb.ReassignStreamRequest(
        stream=ref, replicas=nodes, observers=pb.Nodes(nodes=observers)
    )
    node = dice.choice(cluster.nodes)
    done = _try(lambda: call(cluster.api(node).cluster.ReassignStream, request))
    return f"{stream} moves to {nodes}, observed by {observers}: {done}"


def change_voters(target: Target, dice: Random) -> str:
    """One more or one less; at least three, so that any one may lose its disk."""
    cluster = target.cluster
    api = cluster.api(dice.choice(cluster.nodes))
    wanted: list[int] = []

    def change() -> None:
        answer = call(api.cluster.ListVoters, pb.ListVotersRequest())
        voters = {voter.node_id for voter in answer.voters}
        others = sorted(set(cluster.nodes) - voters)
        if others and (len(voters) <= VOTERS_MIN or dice.random() < 0.5):
            wanted.extend(sorted(voters | {dice.choice(others)}))
        elif len(voters) > VOTERS_MIN:
            wanted.extend(sorted(voters - {dice.choice(sorted(voters))}))
        call(api.cluster.ChangeVoters, pb.ChangeVotersRequest(voters=wanted))

    done = _try(change)
    return f"nodes {wanted or '?'} are to vote: {done}"


def side_streams(target: Target, dice: Random) -> str:
    """Streams that come, are changed, purged and go."""
    name = f"side-{dice.randrange(SIDE_STREAMS)}"
    api = target.cluster.api(dice.choice(target.cluster.nodes))
    ref = common_pb2.StreamRef(name=name)
    what = dice.choice(("create", "create", "alter", "purge", "delete"))
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: api.create(name, name, replicas=dice.choice((1, 3))),
        "alter": lambda: call(
            api.streams.AlterStream,
            pb.AlterStreamRequest(stream=ref, config=pb.StreamConfig(max_bytes=1 << 20)),
        ),
        "purge": lambda: call(api.streams.PurgeStream, pb.PurgeStreamRequest(stream=ref)),
        "delete": lambda: api.delete(name),
    }
    return f"{what} {name}: {_try(calls[what])}"


def disturb_worker(target: Target, dice: Random) -> str:
    """One member of the consumer group, or one more or less."""
    workers = target.workers
    alive = workers.alive()
    what = dice.choice(("kill", "freeze", "stop", "add"))
    number = dice.choice(alive)
    if what == "add" and len(alive) < WORKERS_MAX:
        workers.start()
        return f"member {len(workers.processes) - 1} added"
    if what == "add":
        workers.signal(number, signal.SIGINT)
        return f"member {number} leaves"
    if what == "freeze":
        workers.signal(number, signal.SIGSTOP)
        return f"member {number} frozen"
    workers.signal(number, signal.SIGKILL if what == "kill" else signal.SIGINT)
    workers.start()
    return f"member {number} {'killed' if what == 'kill' else 'stopped'}, another started"


FAULTS: dict[str, Fault] = {
    "kill": kill,
    "kill-some": kill_some,
    "freeze": freeze,
    "restart": restart_each,
    "cut": cut,
    "nats": cut_from_nats,
    "nats-kill": kill_nats,
    "nats-freeze": freeze_nats,
    "nats-route": cut_nats_route,
    "flap": flap,
    "slow": slow_links,
    "lossy": lossy_links,
    "clock": set_clock,
    "disk": break_disk,
    "full": fill_disk,
    "damage": damage_file,
    "folder": lose_folder,
    "transfer": transfer,
    "reassign": reassign,
    "voters": change_voters,
    "streams": side_streams,
    "members": disturb_worker,
}
ALONE = frozenset({"disk", "damage", "folder"})
"""Faults of a disk: never beside another fault, and only in a cluster that is whole."""


DETOURS = frozenset({"nats-kill", "nats-freeze", "nats-route", "slow", "lossy"})
"""Faults in which a message may overtake an earlier one on its way through NATS."""


def impossible() -> dict[str, str]:
    """The faults that there cannot be on this machine, and why."""
    reason = small_disk.missing()
    return {"full": reason} if reason else {}


def possible() -> tuple[str, ...]:
    """All others."""
    return tuple(name for name in FAULTS if name not in impossible())


def heal(target: Target) -> None:
    target.cluster.heal()
    for number in target.workers.alive():
        target.workers.signal(number, signal.SIGCONT)
    keep_workers(target.workers)


def keep_workers(workers: GroupWorkers) -> None:
    """Start members for those that have ended."""
    while len(workers.alive()) < WORKERS:
        workers.start()


def _any_running(target: Target, dice: Random) -> int:
    cluster = target.cluster
    return dice.choice([node for node in cluster.nodes if cluster.is_running(node)] or [0])


def _try(work: Callable[[], object]) -> str:
    """What came of a request; it may be refused while others are frozen or cut off."""
    try:
        work()
    except JetstreamError as error:
        return str(error.code)
    except grpc.RpcError as error:
        return str(error.code())
    return "done"
