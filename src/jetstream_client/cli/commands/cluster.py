"""`jetstream cluster …` and `jetstream node …`: show the nodes, and empty one of them."""

from __future__ import annotations

from typing import Any

from jetstream_client.cli import options
from jetstream_client.cli.commands.drain import drain
from jetstream_client.cli.commands.health import health
from jetstream_client.cli.commands.reassign import decommission, remove
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, nodes_text, print_fields, print_table, stream_row
from jetstream_client.cli.setting_options import with_options
from jetstream_client.cli.units import duration_text, size_text
from jetstream_client.values.types import ClusterInfo, Node
from jetstream_protocol.settings import CLUSTER_SETTINGS, Kind, Setting

app = options.group("cluster")
node_app = options.group("node")

_SETTINGS = {each.name: each for each in CLUSTER_SETTINGS}


def _copying_text(bytes_per_second: int) -> str:
    return (
        f"{size_text(bytes_per_second)} a second from each node" if bytes_per_second else "no limit"
    )


def _controller_text(cluster: ClusterInfo) -> str:
    if cluster.controller >= 0:
        return str(cluster.controller)
    voters = nodes_text([node.id for node in cluster.nodes if node.voter])
    return f"none: most of the voters, {voters}, must run and reach each other"


@app.command()
@common_options(watch=True)
def status(cli: Invocation) -> None:
    """Show the nodes, the controller and the NATS servers.

    Examples:

      jetstream cluster status --json | jq .controller

      jetstream cluster status --watch
    """
    with cli.client() as client:
        cli.show(client.describe_cluster, _draw, _draw_json)


def _draw_json(cluster: ClusterInfo) -> None:
    emit_json(cluster_row(cluster))


def _draw(cluster: ClusterInfo) -> None:
    print_fields(
        {
            "cluster": cluster.cluster_id,
            "controller": _controller_text(cluster),
            "nats": cluster.nats,
            "version": cluster.server_version,
            "copying": _copying_text(cluster.copy_bytes_per_second),
            "lag max": _in_words(_SETTINGS["replica_lag_max"], cluster.replica_lag_max),
        }
    )
    print()
    columns = ("NODE", "STATE", "VOTER", "RACK", "INCARNATION", "GRPC", "DATA", "HTTP")
    print_table(columns, [_node_cells(cluster, node) for node in cluster.nodes])


@app.command()
@common_options()
def record_activity(cli: Invocation) -> None:
    """Write later changes to the stream __activity.

    Changes of cursors are among them.

    Examples:

      jetstream cluster record-activity

      jetstream fetch __activity --follow
    """
    with cli.client() as client:
        stream = client.record_activity()
    text = f"changes are written to {stream.name}: jetstream fetch {stream.name} --follow"
    cli.answer(stream_row(stream), text)


@app.command()
@with_options(CLUSTER_SETTINGS)
@common_options()
def alter(cli: Invocation, **settings: Any) -> None:
    """Change or show settings of the cluster.

    They hold at once, for the whole cluster, and until they are changed again.

    --copy-bytes-per-second slows down how streams are copied to replicas that are not in sync: new
    ones, observers, and those of a node that was away. They take turns. Replicas in sync are not
    slowed down, nor streams that have too few of them to accept messages. If more is published to a
    stream than the limit lets through, its copy never catches up.

    Examples:

      jetstream cluster alter

      jetstream cluster alter --copy-bytes-per-second 50MiB

      jetstream cluster alter --copy-bytes-per-second 0 --replica-lag-max 30s
    """
    with cli.client() as client:
        if settings:
            client.alter_cluster(**settings)
        cluster = client.describe_cluster()
    row = {name: getattr(cluster, name) for name in _SETTINGS}
    text = ", ".join(f"{name} {_in_words(_SETTINGS[name], row[name])}" for name in row)
    cli.answer(row, text)


def _in_words(setting: Setting, value: float) -> str:
    if not value:
        return setting.zero
    return duration_text(value) if setting.kind is Kind.DURATION else size_text(int(value))


app.command()(health)
node_app.command()(drain)


node_app.command()(decommission)
node_app.command()(remove)


def cluster_row(cluster: ClusterInfo) -> dict[str, Any]:
    """The cluster as JSON. `controller` is -1 if there is none."""
    return {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller,
        "nodes": [_node_row(cluster, node) for node in cluster.nodes],
        "nats": cluster.nats,
        "server_version": cluster.server_version,
        **{name: getattr(cluster, name) for name in _SETTINGS},
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
        "not_ready": list(node.not_ready),
        "voter": node.voter,
        "disk_full": node.disk_full,
    }


def _node_cells(cluster: ClusterInfo, node: Node) -> tuple[object, ...]:
    state, rack = _state(cluster, node), node.rack or "-"
    reasons = node.not_ready or (() if cluster.controller >= 0 else ("no controller",))
    if reasons:
        state = f"{state} ({', '.join(reasons)})"
    voter = {True: "yes", False: "no", None: "-"}[node.voter]
    return node.id, state, voter, rack, node.incarnation, node.grpc, node.data, node.http


def _state(cluster: ClusterInfo, node: Node) -> str:
    """Only the controller notices that a node has died: without one it is unknown."""
    if cluster.controller < 0:
        return "unknown"
    states = {
        "fenced": node.fenced,
        "draining": node.draining,
        "disk full": node.disk_full,
        "not ready": bool(node.not_ready),
    }
    return ", ".join(word for word, holds in states.items() if holds) or "serving"
