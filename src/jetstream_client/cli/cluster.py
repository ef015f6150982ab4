"""`jetstream cluster …` and `jetstream node …`: who the nodes are, and emptying one of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jetstream_client._sync import Client
from jetstream_client._types import ClusterInfo, Node
from jetstream_client.cli import options
from jetstream_client.cli.output import emit_json, node_text, print_fields, print_table

app = options.group("Look at the cluster.")
node_app = options.group("Prepare a node for maintenance.")


@app.command()
def status(
    context: typer.Context,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Show the nodes, the controller and the NATS servers to publish to.

    Example:  jetstream cluster status --json | jq .controller
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
        cluster = client.describe_cluster()
    if options.wants_json(context, json):
        emit_json(cluster_row(cluster))
        return
    print_fields(
        {
            "cluster": cluster.cluster_id,
            "controller": node_text(cluster.controller),
            "nats": cluster.nats,
            "version": cluster.server_version,
        }
    )
    print()
    columns = ("NODE", "STATE", "RACK", "INCARNATION", "GRPC", "DATA", "HTTP")
    print_table(columns, [_node_cells(cluster, node) for node in cluster.nodes])


@node_app.command()
def drain(
    context: typer.Context,
    node: options.NodeId,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take leaderships again.")] = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Move a node's leaderships to others, until --undo, also across its restarts.

    `cluster status` shows the mark, `stream list` who leads.

    Example:  jetstream node drain 2
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
        client.drain_node(node, undo=undo)
    if options.wants_json(context, json):
        emit_json({"node": node, "draining": not undo})
    elif undo:
        print(f"node {node} takes leaderships again")
    else:
        print(f"node {node} is draining")


def cluster_row(cluster: ClusterInfo) -> dict[str, Any]:
    """`controller` is -1 where there is none."""
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller,
        "nodes": [_node_row(cluster, node) for node in cluster.nodes],
        "nats": cluster.nats,
        "server_version": cluster.server_version,
    }


def _node_row(cluster: ClusterInfo, node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "state": _state(cluster, node),
        "addresses": {"grpc": node.grpc, "data": node.data, "http": node.http},
        "rack": node.rack,
        "incarnation": node.incarnation,
        "fenced": node.fenced,
        "draining": node.draining,
    }


def _node_cells(cluster: ClusterInfo, node: Node) -> tuple[object, ...]:
    state, rack = _state(cluster, node), node.rack or "-"
    return node.id, state, rack, node.incarnation, node.grpc, node.data, node.http


def _state(cluster: ClusterInfo, node: Node) -> str:
    """The controller alone notices that a node has died: without one nobody knows."""
    if cluster.controller < 0:
        return "unknown"
    said = {"fenced": node.fenced, "draining": node.draining}
    return ", ".join(word for word, holds in said.items() if holds) or "serving"
