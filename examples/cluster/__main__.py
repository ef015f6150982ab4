"""The command line of a local cluster, run by `scripts/cluster`. Say --help for its commands."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from rich.console import Console

from examples.cluster.failover import FailoverError, perform
from examples.cluster.local import (
    NATS,
    NODES_DEFAULT,
    LocalCluster,
    counted,
    free_port_base,
    node_name,
)
from examples.cluster.processes import ClusterError
from examples.cluster.scene import Scene
from jetstream_client import JetstreamError
from jetstream_server.node.config import PORT_BASE_DEFAULT

DIRECTORY_DEFAULT = Path("jetstream-cluster")
TERMINATIONS = (signal.SIGTERM, signal.SIGHUP)
"""The second is that of a terminal that is closed: it comes from the kernel and from the shell."""

command = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A cluster on this machine: each node a process, and NATS one that survives them.",
)
Directory = Annotated[Path, typer.Option("--dir", help="The cluster's folder.")]
Node = Annotated[int, typer.Argument(help="The node's id.")]


@command.command()
def up(
    nodes: Annotated[
        int | None, typer.Option(min=1, max=9, help=f"How many nodes. Default: {NODES_DEFAULT}.")
    ] = None,
    directory: Directory = DIRECTORY_DEFAULT,
    port_base: Annotated[
        int | None,
        typer.Option(
            min=1024,
            max=65000,
            help="Node i on port-base + 10·i and the three ports after it; NATS on + 4. "
            f"Default: {PORT_BASE_DEFAULT}.",
        ),
    ] = None,
) -> None:
    """Start NATS and every node that is not running; a folder keeps its nodes and ports."""
    cluster = LocalCluster(directory)
    cluster.create(nodes, port_base)
    try:
        with Console(stderr=True).status("starting"):
            cluster.start()
    except ClusterError as error:
        left = ", ".join(sorted(cluster.pids()))
        if not left:
            raise
        end = cluster.command("down")
        raise ClusterError(f"{error} (still running: {left}; end that with {end})") from error
    print(f"cluster of {counted(len(cluster.node_ids))} is up in {cluster.directory}")
    print(f"  export JETSTREAM_SERVERS={','.join(cluster.grpc_addresses)}")
    print(f"  NATS: {cluster.nats_url}")


@command.command()
def status(directory: Directory = DIRECTORY_DEFAULT) -> None:
    """Which processes run, and where; why a node that runs does not serve."""
    cluster = LocalCluster(directory)
    running = cluster.pids()
    for node in cluster.config["nodes"]:
        pid = running.get(node_name(node["id"]))
        reason = cluster.why_not_ready(node["id"]) if pid else ""
        print(f"node {node['id']}  {node['grpc']}  {_state(pid, reason)}")
    print(f"nats    {cluster.nats_url}  {_state(running.get(NATS))}")


def _state(pid: int | None, reason: str = "") -> str:
    if pid is None:
        return "stopped"
    return f"running, pid {pid}" + (f", not ready: {reason}" if reason else "")


@command.command()
def kill(node: Node, directory: Directory = DIRECTORY_DEFAULT) -> None:
    """Kill a node with SIGKILL; NATS goes on."""
    cluster = LocalCluster(directory)
    cluster.check_node(node)
    if not cluster.kill_node(node):
        raise ClusterError(f"node {node} is not running")
    print(f"node {node} killed")


@command.command()
def start(node: Node, directory: Directory = DIRECTORY_DEFAULT) -> None:
    """Start a stopped node again, on the data it had. It serves with a majority of the nodes."""
    cluster = LocalCluster(directory)
    cluster.check_node(node)
    cluster.start_nats()
    cluster.start_node(node)
    cluster.wait_for_nodes(node)
    print(f"node {node} is up")


@command.command()
def down(
    directory: Directory = DIRECTORY_DEFAULT,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the folder, data and all.")
    ] = False,
) -> None:
    """Stop every node, then NATS."""
    cluster = LocalCluster(directory)
    if not cluster.pids():
        cluster.check()
    if delete:
        cluster.delete()
    else:
        cluster.stop()
    print("the cluster is down")


@command.command()
def demo(
    nodes: Annotated[int, typer.Option(min=3, max=9, help="How many nodes.")] = NODES_DEFAULT,
    rate: Annotated[int, typer.Option(min=1, help="Messages published a second.")] = 1_000,
) -> None:
    """Kill a stream's leader under load, watch another take over, and count what is left."""
    with TemporaryDirectory(prefix="jetstream-failover-") as folder, Scene() as scene:
        cluster = LocalCluster(Path(folder))
        cluster.create(nodes, free_port_base(nodes))
        try:
            begun = time.monotonic()
            cluster.start()
            seconds = time.monotonic() - begun
            scene.done("cluster", f"{nodes} nodes and a nats-server, up in {seconds:.1f} s")
            outcome = asyncio.run(perform(cluster, scene, rate))
        except (FailoverError, JetstreamError) as error:
            scene.unwatch()
            scene.failed(str(error))
            raise typer.Exit(1) from error
        finally:
            cluster.stop()
    if not outcome.verdict.is_good:
        raise typer.Exit(1)


def _terminate(_number: int, _frame: object) -> None:
    """As Ctrl-C, which asyncio turns into an end in good order; once, so that it comes to it."""
    for number in TERMINATIONS:
        signal.signal(number, signal.SIG_IGN)
    signal.raise_signal(signal.SIGINT)


def main() -> None:
    """Exit codes: 0 done; 1 it could not be, one line says why; 130 interrupted."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # A script's jobs begin without.
    for number in TERMINATIONS:
        if signal.getsignal(number) != signal.SIG_IGN:  # As nohup has it.
            signal.signal(number, _terminate)
    try:
        command()
    except (ClusterError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
