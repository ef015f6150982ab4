"""`jetstream cluster …` and `jetstream node …`: show the nodes, and empty one of them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.commands.drain import drain
from jetstream_client.cli.commands.health import health
from jetstream_client.cli.commands.reassign import decommission, remove
from jetstream_client.cli.output import (
    emit_json,
    node_text,
    print_fields,
    print_table,
    stream_row,
)
from jetstream_client.cli.setting_options import with_options
from jetstream_client.cli.units import duration_text, parse_size, size_text
from jetstream_client.cli.watching import Watch, show
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import ClusterInfo, Node
from jetstream_protocol.settings import CLUSTER_SETTINGS, Kind, Setting

app = options.group("Show the cluster.")
node_app = options.group("Empty a node for maintenance, or for good.")


def _rate(text: str | int) -> int:
    """Bytes a second. Raises typer.BadParameter."""
    return 0 if text == "none" else parse_size(text)


def _throttle_text(bytes_per_second: int) -> str:
    return f"{size_text(bytes_per_second)} a second and node" if bytes_per_second else "no limit"


@app.command()
def status(
    context: typer.Context,
    watch: Watch = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Show the nodes, the controller and the NATS servers.

    Examples:

      jetstream cluster status --json | jq .controller

      jetstream cluster status --watch
    """
    as_json = options.wants_json(context, json)
    with Client.from_config(
        options.config_of_one_thing(context, server, timeout, watch=watch)
    ) as client:
        draw = _draw_json if as_json else _draw
        show(client.describe_cluster, draw, watch=watch, lines=as_json)


def _draw_json(cluster: ClusterInfo) -> None:
    emit_json(cluster_row(cluster))


def _draw(cluster: ClusterInfo) -> None:
    print_fields(
        {
            "cluster": cluster.cluster_id,
            "controller": node_text(cluster.controller),
            "nats": cluster.nats,
            "version": cluster.server_version,
            "throttle": _throttle_text(cluster.copy_bytes_per_second),
            "lag max": duration_text(cluster.replica_lag_max) if cluster.replica_lag_max else "10s",
        }
    )
    print()
    columns = ("NODE", "STATE", "VOTER", "RACK", "INCARNATION", "GRPC", "DATA", "HTTP")
    print_table(columns, [_node_cells(cluster, node) for node in cluster.nodes])


@app.command()
def record_activity(
    context: typer.Context,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Write every later change, also of cursors, to the stream __activity.

    Example: jetstream cluster record-activity && jetstream fetch __activity --follow
    """
    config = options.config_of_one_thing(context, server, timeout)
    with Client.from_config(config) as client:
        stream = client.record_activity()
    text = f"changes are written to {stream.name}: jetstream fetch {stream.name} --follow"
    options.answer(context, json, stream_row(stream), text)


@app.command()
@with_options(CLUSTER_SETTINGS)
def alter(
    context: typer.Context,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
    **settings: Any,
) -> None:
    """Change settings of the whole cluster, or show them; other settings stay.

    Example: jetstream cluster alter --replica-lag-max 30s
    """
    config = options.config_of_one_thing(context, server, timeout)
    with Client.from_config(config) as client:
        if settings:
            client.alter_cluster(**settings)
        cluster = client.describe_cluster()
    row = {each.name: getattr(cluster, each.name) for each in CLUSTER_SETTINGS}
    said = ", ".join(f"{each.name} {_in_words(each, row[each.name])}" for each in CLUSTER_SETTINGS)
    options.answer(context, json, row, said)


def _in_words(setting: Setting, value: float) -> str:
    if not value:
        return setting.zero
    return duration_text(value) if setting.kind is Kind.DURATION else size_text(int(value))


@app.command()
def throttle(
    context: typer.Context,
    rate: Annotated[
        int | None,
        typer.Argument(parser=_rate, metavar="RATE", help="Bytes a second: 50MiB; or: none."),
    ] = None,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Limit how fast streams are copied, or show the limit.

    Each node sends at most so many bytes a second to replicas that are not in sync: new ones,
    observers, and those of a node that was away. They take turns. The limit holds at once, for the
    whole cluster, and until it is changed. Replicas in sync are not slowed down, nor streams that
    have too few of them to accept messages. If more is published to a stream than the limit lets
    through, its copy never catches up.

    Examples:

      jetstream cluster throttle 50MiB

      jetstream cluster throttle none
    """
    config = options.config_of_one_thing(context, server, timeout)
    with Client.from_config(config) as client:
        if rate is None:
            rate = client.describe_cluster().copy_bytes_per_second
        else:
            client.set_throttle(rate)
    row = {"copy_bytes_per_second": rate}
    options.answer(context, json, row, f"copying: {_throttle_text(rate)}")


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
        **{each.name: getattr(cluster, each.name) for each in CLUSTER_SETTINGS},
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
    }


def _node_cells(cluster: ClusterInfo, node: Node) -> tuple[object, ...]:
    state, rack = _state(cluster, node), node.rack or "-"
    if node.not_ready:
        state = f"{state} ({', '.join(node.not_ready)})"
    voter = {True: "yes", False: "no", None: "-"}[node.voter]
    return node.id, state, voter, rack, node.incarnation, node.grpc, node.data, node.http


def _state(cluster: ClusterInfo, node: Node) -> str:
    """Only the controller notices that a node has died: without one nobody knows."""
    if cluster.controller < 0:
        return "unknown"
    said = {
        "fenced": node.fenced,
        "draining": node.draining,
        "not ready": bool(node.not_ready),
    }
    return ", ".join(word for word, holds in said.items() if holds) or "serving"
