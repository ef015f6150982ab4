"""`jetstream cluster health`: whether all is well, and if not, why. Scripts use its exit code.

This module decides what counts as a problem, from the answers of the cluster. A draining node is
not one: an operator wants it so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jetstream_client.cli.exits import Exit
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, printable
from jetstream_client.cli.units import size_text
from jetstream_client.values.types import ClusterInfo, Node, StreamDescription
from jetstream_protocol.times import timestamp_text

if TYPE_CHECKING:
    from jetstream_client.clients.blocking_client import Client

NAMES_MAX = 3
"""Problems of one kind that people are shown, unless they ask for more; JSON has all."""


AHEAD = timedelta(hours=1)
"""Clocks that differ by more than this: one of them is wrong."""


@dataclass(frozen=True, slots=True)
class Problem:
    """kind: a word for scripts. about: a node's number or a stream's name@subject, as text; ""
    where it concerns the whole cluster."""

    kind: str
    about: str
    reason: str


def problems_of(cluster: ClusterInfo, streams: Sequence[StreamDescription]) -> list[Problem]:
    """The worst first."""
    found = [*_of_nodes(cluster), *(each for s in streams for each in _of_stream(s))]
    return sorted(found, key=lambda problem: _KINDS.index(problem.kind))


_SAYS = {
    "no_controller": "no controller",
    "node_fenced": "nodes that are not heard",
    "node_not_ready": "nodes that are not ready",
    "no_leader": "streams without a leader",
    "leader_silent": "streams whose leader does not answer",
    "log_offline": "streams whose log is offline",
    "not_listening": "streams that hear no publisher",
    "too_few_in_sync": "streams that refuse publishers that ask for acks",
    "records_damaged": "streams with lost records on a disk",
    "out_of_sync": "streams with nodes out of sync",
    "times_ahead": "streams with records from the future",
}
"""The kinds, the worst first, and what each means for several nodes or streams."""
_KINDS = tuple(_SAYS)


def _of_nodes(cluster: ClusterInfo) -> Iterator[Problem]:
    if cluster.controller < 0:
        yield Problem(
            "no_controller", "", "the metadata group has no leader: nothing can be decided"
        )
    for node in cluster.nodes:
        yield from _of_node(node)


def _of_node(node: Node) -> Iterator[Problem]:
    if node.fenced:
        yield Problem("node_fenced", str(node.id), f"node {node.id} is not heard: is it down?")
    elif node.not_ready:
        reasons = ", ".join(node.not_ready)
        yield Problem("node_not_ready", str(node.id), f"node {node.id} is not ready: {reasons}")


def _of_stream(stream: StreamDescription) -> Iterator[Problem]:
    name = stream.full_name
    if stream.leader < 0:
        yield Problem("no_leader", name, f"stream {name} has no leader: {stream.state}")
        return
    if stream.state.startswith("unknown"):
        yield Problem("leader_silent", name, f"stream {name}: {stream.state}")
    elif stream.state.startswith("offline"):
        yield Problem("log_offline", name, f"stream {name} is {stream.state}")
    elif stream.state.startswith("not listening"):
        yield Problem("not_listening", name, f"stream {name} is {stream.state}")
    missing = [node for node in stream.replicas if node not in stream.isr]
    nodes = f"node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    if len(stream.isr) < stream.min_insync_replicas:
        yield Problem(
            "too_few_in_sync",
            name,
            f"stream {name} refuses publishers that ask for acks: {len(stream.isr)} of "
            f"{stream.min_insync_replicas} needed replicas in sync, without {nodes}",
        )
    elif missing:
        yield Problem("out_of_sync", name, f"stream {name} has {nodes} out of sync")
    if ahead := _times_ahead(stream, datetime.now(UTC)):
        yield Problem("times_ahead", name, ahead)
    for bad in stream.damaged[:1]:
        yield Problem(
            "records_damaged",
            name,
            f"stream {name}: the disk of node {bad.node} has lost records, from offset {bad.start}",
        )


def _times_ahead(stream: StreamDescription, now: datetime) -> str:
    """What follows from a time of the last record that has not come: a clock was wrong, there or
    here. "": nothing."""
    if stream.last_append is None or stream.last_append - now < AHEAD:
        return ""
    until = timestamp_text(stream.last_append)
    effects = "new records get that time, too"
    if stream.max_age:
        effects += ", and max_age removes nothing before it is over; use max_bytes or a purge"
    return (
        f"stream {stream.full_name}: its last record is of {until}, which has not come: {effects}"
    )


def notes_of(cluster: ClusterInfo, streams: Sequence[StreamDescription]) -> list[str]:
    """What an operator should know although all may be well now: what slows copies down, where
    records may be missing, and which observers do not follow."""
    return [*_slow_copies(cluster), *_lossy(streams), *_lost_observers(cluster, streams)]


def _slow_copies(cluster: ClusterInfo) -> Iterator[str]:
    """A limit that an operator may have forgotten."""
    if limit := cluster.copy_bytes_per_second:
        yield (
            f"nodes copy {size_text(limit)} a second at most to replicas that are not in sync "
            "(jetstream cluster alter --copy-bytes-per-second)"
        )


def unseen(client: Client, count: int) -> list[str]:
    """What to say of streams that this principal may not describe. count: those that it may."""
    decision = client.test_acl("describe", stream="*", subject=">")
    if decision.allowed or not decision.enforced:
        return []
    return [
        f"only the streams that you may describe were looked at, {count:,}: to see all of them you "
        "need jetstream acl add PRINCIPAL --allow describe --stream '*'"
    ]


def _lossy(streams: Sequence[StreamDescription]) -> list[str]:
    return [
        f"stream {each.full_name}: committed records may have been lost in "
        f"{each.lossy_elections} election{'s' if each.lossy_elections > 1 else ''}: compare with "
        "what publishers know"
        for each in streams
        if each.lossy_elections
    ]


def _lost_observers(cluster: ClusterInfo, streams: Sequence[StreamDescription]) -> Iterator[str]:
    fenced = {node.id for node in cluster.nodes if node.fenced}
    for stream in streams:
        unheard = {each.node for each in stream.progress if each.lag is None}
        for node in stream.observers:
            if node not in stream.replicas and node in fenced | unheard:
                yield (
                    f"stream {stream.full_name}: its observer on node {node} does not follow; "
                    "readers use other copies"
                )


@common_options(watch=True)
def health(
    cli: Invocation,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every problem, not the first three of each kind.")
    ] = False,
) -> int:
    """Say whether all is well. Exit code 0: it is; 7: it is not, with the reasons.

    It looks at the nodes, and at the streams that you may describe.

    Examples:

      jetstream cluster health && echo restart the next node

      jetstream cluster health --all

      jetstream cluster health --json | jq -r '.problems[].reason'
    """
    found: list[Problem] = []

    def draw(seen: tuple[list[Problem], list[str]]) -> None:
        problems, notes = seen
        found[:] = problems
        if cli.json:
            emit_json(_row(problems, notes))
        else:
            lines = lines_of(problems, everything=everything)
            print("\n".join(lines + lines_of_notes(notes, everything=everything)))

    def look() -> tuple[list[Problem], list[str]]:
        streams = client.describe_streams(internal=True)
        cluster = client.describe_cluster()
        notes = [*unseen(client, len(streams)), *notes_of(cluster, streams)]
        return problems_of(cluster, streams), notes

    with cli.client() as client:
        cli.show(look, draw, draw)
    return Exit.UNHEALTHY if found else Exit.OK


def _row(problems: list[Problem], notes: list[str]) -> dict[str, Any]:
    found = [asdict(problem) for problem in problems]
    return {"healthy": not problems, "problems": found, "notes": notes}


def lines_of(problems: Sequence[Problem], *, everything: bool = False) -> list[str]:
    """What people read. problems: the worst first, as `problems_of` returns them. everything: all
    of them; otherwise the first NAMES_MAX of each kind, and how many more there are."""
    if not problems:
        return ["healthy"]
    lines = ["not healthy:"]
    for kind, group in groupby(problems, key=lambda problem: problem.kind):
        same = list(group)
        shown = same if everything else same[:NAMES_MAX]
        lines += [f"* {printable(problem.reason)}" for problem in shown]
        if len(same) > len(shown):
            left_out = len(same) - len(shown)
            lines.append(f"* and {left_out:,} more: {_SAYS[kind]}; --all shows them")
    return lines


def lines_of_notes(notes: Sequence[str], *, everything: bool = False) -> list[str]:
    """The same for what `notes_of` returns."""
    shown = notes if everything else notes[:NAMES_MAX]
    lines = [f"note: {printable(note)}" for note in shown]
    if len(notes) > len(shown):
        lines.append(f"note: and {len(notes) - len(shown):,} more such streams; --all shows them")
    return lines
