"""`jetstream node drain`: move all leaderships off a node before maintenance, and wait until that
is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, printable
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import ClusterInfo, Stream
from jetstream_protocol.errors import UnavailableError

LOOK_SECONDS = 0.3


@common_options(total=False)
def drain(
    cli: Invocation,
    node: options.NodeId,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take leaderships again.")] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait", help="Wait until it leads nothing that another node could, at most --timeout."
        ),
    ] = False,
) -> None:
    """Move a node's leaderships to other nodes, until --undo.

    The node stays marked as draining across its restarts.

    `cluster status` shows that the node is draining, and `stream list` which nodes lead.

    Examples:

      jetstream node drain 2

      jetstream node drain 2 --wait --timeout 120
    """
    if wait and undo:
        raise typer.BadParameter("--wait and --undo cannot be used together")
    stays: list[Stream] = []
    with cli.client() as client:
        client.drain_node(node, undo=undo)
        if wait:
            stays = _wait(client, node, cli.config.timeout)
    if cli.json:
        row: dict[str, object] = {"node": node, "draining": not undo}
        emit_json({**row, "still_leads": [s.full_name for s in stays]} if wait else row)
    elif undo:
        print(f"node {node} takes leaderships again")
    elif not wait:
        print(f"node {node} is draining")
    elif stays:
        names = ", ".join(printable(stream.full_name) for stream in stays)
        print(f"node {node} leads only what nobody else can: {names}")
    else:
        print(f"node {node} leads nothing")


def _wait(client: Client, node: int, seconds: float) -> list[Stream]:
    """What it leads in the end. Raises UnavailableError when that is too much for so long."""
    deadline = time.monotonic() + seconds
    while True:
        led = [stream for stream in client.list_streams(internal=True) if stream.leader == node]
        movable = can_move(client.describe_cluster(), led, node) if led else []
        if not movable:
            return led
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"node {node} is draining, and after {seconds:g} s still leads {len(movable)} "
                f"streams that others could, {movable[0].full_name!r} for one; wait on with the "
                "same command"
            )
        time.sleep(LOOK_SECONDS)


def can_move(cluster: ClusterInfo, led: Sequence[Stream], node: int) -> list[Stream]:
    """Those that another node in sync could lead: one that is heard and not draining."""
    able = {each.id for each in cluster.nodes if not (each.fenced or each.draining)} - {node}
    return [stream for stream in led if able & set(stream.isr)]
