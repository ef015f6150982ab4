"""`jetstream-server --nodes-here N`: several nodes on one machine, to use all of its processors.

Each entry of the file's `nodes` stands for a machine. Machine *i* runs the nodes 100·i, 100·i + 1
and so on, with their ports 10 apart, in the folders `node-ID` of the data folder, under one rack
label.
The file that says so is written into the data folder, and each node is an ordinary
`jetstream-server` with it, a child of this process: started again when it ends, stopped by SIGTERM.
SIGHUP is passed on to all of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import yaml

from jetstream_server.ingest.nats import die_with_parent
from jetstream_server.log.data_folder import IDENTITY_NAME
from jetstream_server.node.config import (
    PORTS,
    Config,
    ConfigurationError,
    NodeConfig,
    check,
    load,
    own_node,
    read,
    split_address,
    voter_count,
)
from jetstream_server.node.stop_signals import stop_signals

FILE_NAME = "cluster.yaml"
NODES_HERE_MAX = 100
"""So far apart are the ids of two machines' first nodes. Other numbers never move a node's id."""
PORTS_BETWEEN_NODES = 10
VOTERS_OF_FEW_MACHINES = 3

PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0
STEADY_SECONDS = 120.0
"""A node that has run this long is started again after the first pause."""

CLEAN = (0, -signal.SIGTERM)
"""Statuses of nodes that were stopped; the second one before it had begun."""

logger = structlog.get_logger("jetstream.server")


class NodesHere(NamedTuple):
    """values: of the file that the nodes are started with. nodes: those that run here."""

    values: dict[str, Any]
    config: Config
    nodes: list[NodeConfig]


def configured(
    path: Path, overrides: Mapping[str, object], machine: int | None, count: int
) -> NodesHere:
    """`count` nodes on each machine of the file.

    overrides: of the command line. machine: the id of this one's entry; None: it is found by
    JETSTREAM_NODE_ID or host name. Raises ConfigurationError.
    """
    machines = load(path, overrides)
    for variable in ("JETSTREAM_NODES", "JETSTREAM_VOTERS"):
        if variable in os.environ:
            raise ConfigurationError(f"{variable}: with --nodes-here the machines are in the file")
    if machines.nats.embedded:
        raise ConfigurationError(
            "nats.embedded: it is for a single node; with --nodes-here start a nats-server and "
            "name it in nats.servers, or give --nats"
        )
    if (machines.data / IDENTITY_NAME).exists():
        raise ConfigurationError(
            f"{machines.data} is the data folder of one node: with --nodes-here it holds a folder "
            "for each; move its content into the folder node-0 below it, or give another --data"
        )
    here = own_node(machines, machine, os.environ)
    values = {**read(path), **nodes_of(machines, count)}
    config = check(values, path, overrides)
    ids = [_node_id(here.id, number) for number in range(count)]
    return NodesHere(values, config, [node for node in config.nodes if node.id in ids])


def nodes_of(machines: Config, count: int) -> dict[str, Any]:
    """The keys `nodes` and `voters` for `count` nodes on each machine. Raises ConfigurationError.

    The voters are the first nodes of the machines that vote; with one or two machines and no word
    about voters up to three nodes, so that the metadata outlives the end of a node.
    """
    entries = sorted(machines.nodes, key=lambda entry: entry.id)
    numbered = [(number, entry) for number in range(count) for entry in entries]
    voters = [_node_id(machine, 0) for machine in machines.voters]
    if not voters:
        voting = max(len(entries), min(len(numbered), VOTERS_OF_FEW_MACHINES))
        first = numbered[: voter_count(voting)]
        voters = sorted(_node_id(entry.id, number) for number, entry in first)
    nodes = sorted(
        (_node(entry, number) for number, entry in numbered), key=lambda node: node["id"]
    )
    return {"nodes": nodes, "voters": voters}


def _node(machine: NodeConfig, number: int) -> dict[str, Any]:
    rack = machine.rack or machine.host or f"machine-{machine.id}"
    node: dict[str, Any] = {"id": _node_id(machine.id, number), "host": machine.host, "rack": rack}
    for port in PORTS:
        endpoint = getattr(machine, port)
        node[port] = {
            "listen": _moved(endpoint.listen, number),
            "advertise": _moved(endpoint.advertise, number),
        }
    return node


def _node_id(machine: int, number: int) -> int:
    return NODES_HERE_MAX * machine + number


def _moved(address: str, number: int) -> str:
    host, separator, port = address.rpartition(":")
    moved = f"{host}{separator}{int(port) + PORTS_BETWEEN_NODES * number}"
    try:
        split_address(moved)
    except ValueError as error:
        raise ConfigurationError(f"nodes: {moved} is no address: give lower ports") from error
    return moved


def _write(file: Path, values: Mapping[str, Any]) -> None:
    """Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.touch(mode=0o600)  # It may hold the credential.
    new.write_text(yaml.safe_dump(dict(values), sort_keys=False))
    new.replace(file)


async def supervise(here: NodesHere, options: Sequence[str]) -> bool:
    """Run the nodes until SIGTERM or SIGINT, each again when it ends. options: for each of them.

    Returns whether all have stopped cleanly. Call it from the main thread, which lives as long as
    the process: the nodes die with it. Raises OSError when the file cannot be written.
    """
    stopped = asyncio.Event()
    processes = Processes()
    folder = here.config.data
    file = folder / FILE_NAME
    _write(file, here.values)
    with stop_signals(stopped, processes.hang_up):
        async with asyncio.TaskGroup() as group:
            running = []
            for node in here.nodes:
                own = ["--node-id", str(node.id), "--data", str(folder / f"node-{node.id}")]
                arguments = ["--config", str(file), *own, *options]
                running.append(
                    group.create_task(_keep_running(node.id, arguments, processes, stopped))
                )
    return all(task.result() in CLEAN for task in running)


class Processes:
    """The nodes that run, by their ids."""

    def __init__(self) -> None:
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._starting = asyncio.Lock()

    async def start(self, node_id: int, arguments: Sequence[str]) -> asyncio.subprocess.Process:
        """Start a node. SIGHUP is blocked in it until it can take the signal (stop_signals.py): one
        that comes earlier neither kills it nor is lost."""
        async with self._starting:  # A second start would take the blocked signal for the usual.
            usual = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())),
                    *(sys.executable, "-m", "jetstream_server", *arguments),
                    stdin=asyncio.subprocess.DEVNULL,
                    # Ctrl-C reaches the whole process group of a terminal: only this process takes
                    # it.
                    start_new_session=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        self._running[node_id] = process
        logger.info("node_started", node=node_id, pid=process.pid)
        return process

    def ends(self, node_id: int) -> None:
        """The node has ended, or is about to be stopped."""
        del self._running[node_id]

    def hang_up(self) -> None:
        """Pass SIGHUP on: every node reads its certificates and keys again."""
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)
        logger.info("reload_passed_on", nodes=sorted(self._running))


async def _keep_running(
    node_id: int, arguments: Sequence[str], processes: Processes, stopped: asyncio.Event
) -> int:
    """Returns the exit status of the last run, 0 if there was none to stop."""
    loop = asyncio.get_running_loop()
    pause = PAUSE_SECONDS_FIRST
    while not stopped.is_set():
        started = loop.time()
        try:
            process = await processes.start(node_id, arguments)
        except OSError as error:  # No memory, or the software is just being replaced.
            logger.error(
                "node_not_started", node=node_id, reason=str(error), starts_again_in_s=pause
            )
        else:
            has_ended = await _ends_before(process, stopped)
            processes.ends(node_id)
            if not has_ended:
                with suppress(ProcessLookupError):
                    process.terminate()
                return await process.wait()
            if loop.time() - started >= STEADY_SECONDS:
                pause = PAUSE_SECONDS_FIRST
            status = process.returncode
            logger.error("node_ended", node=node_id, status=status, starts_again_in_s=pause)
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stopped.wait()
        pause = min(2 * pause, PAUSE_SECONDS_MAX)
    return 0


async def _ends_before(process: asyncio.subprocess.Process, stopped: asyncio.Event) -> bool:
    """Wait for the end of the process or the command to stop. Returns whether it has ended."""
    waits = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(stopped.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return process.returncode is not None and not stopped.is_set()
