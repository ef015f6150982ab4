"""`jetstream stream elect`: choose a leader by hand. First it says what may be lost."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_table, printable, stream_row
from jetstream_client.cli.units import records_text
from jetstream_client.values.checks import NODE_MAX
from jetstream_client.values.types import ReplicaState, Stream, UncleanElection


@common_options(total=False)
def elect(
    cli: Invocation,
    stream: options.StreamName,
    unclean: Annotated[
        int,
        typer.Option(
            metavar="NODE",
            min=0,
            max=NODE_MAX,
            help="The replica to elect, although it may lack records.",
        ),
    ],
    yes: options.Yes = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what the election would cost.")
    ] = False,
) -> None:
    """Elect a leader by hand when the good replicas are gone.

    The command first shows what may be lost, and asks. If the stream has a leader, use
    transfer-leader.

    Example: jetstream stream elect orders --unclean 2
    """
    with cli.client() as client:
        plan = client.elect_uncleanly(stream, unclean, dry_run=True)
        if not cli.json:
            _print_plan(plan, unclean)
        if dry_run:
            done = plan
        else:
            options.confirm(f"Elect node {unclean}?", "not elected", yes=yes, dry_run=True)
            epoch = plan.stream.stream_epoch
            done = client.elect_uncleanly(plan.stream, unclean, stream_epoch=epoch)
    after = done.stream
    if cli.json:
        emit_json(_row(done, elected=not dry_run))
    elif not dry_run:
        print(f"node {after.leader} leads {after.name}, in epoch {after.leader_epoch}")


def _row(election: UncleanElection, *, elected: bool) -> dict[str, Any]:
    return {
        "elected": elected,
        "records_lost_max": election.records_lost_max,
        "unheard": election.unheard,
        "replicas": [dataclasses.asdict(replica) for replica in election.replicas],
        "stream": stream_row(election.stream),
    }


def _print_plan(plan: UncleanElection, chosen: int) -> None:
    print(f"{printable(plan.stream.full_name)} has no leader (stream epoch", end=" ")
    print(f"{plan.stream.stream_epoch}).\n")
    columns = ("NODE", "STATE", "WAS IN", "LOG", "LAST EPOCH", "COMMITTED", "PROBLEM")
    print_table(columns, [_cells(replica) for replica in plan.replicas])
    print(f"\nTo elect node {chosen} may cost:")
    for line in _costs(plan, chosen):
        print(f"* {line}")
    sys.stdout.flush()


def _cells(replica: ReplicaState) -> tuple[object, ...]:
    """COMMITTED is what this replica knows to be committed; there may be more. A restart forgets
    it."""
    where = replica.standing.upper() or "-"
    state = "alive" if replica.alive else "not alive"
    if replica.log_end_offset is None:
        return replica.node, state, where, "unknown", "-", "-", replica.problem or "-"
    log = f"{replica.log_start_offset}..{replica.log_end_offset}"
    epoch = "-" if replica.last_epoch in (None, -1) else replica.last_epoch
    known = replica.high_watermark
    committed = "-" if known is None or known == replica.log_start_offset else f"below {known}"
    return replica.node, state, where, log, epoch, committed, replica.problem or "-"


def _costs(plan: UncleanElection, chosen: int) -> Iterator[str]:
    lost = plan.records_lost_max
    if lost:
        yield f"at most {records_text(lost)} that another replica holds and node {chosen} does not"
    if plan.unheard:
        nodes = " and ".join(f"node {node}" for node in plan.unheard)
        yield (
            f"what only {nodes} held: records that were committed there and are on no other node. "
            "How many, nobody alive knows; they are cut off when it comes back"
        )
    if not lost and not plan.unheard:
        yield "nothing that was committed, as far as the logs can be believed"
    problem = next(each.problem for each in plan.replicas if each.node == chosen)
    if problem:
        yield f"what lies after the damage on node {chosen}: {printable(problem)}"
    yield from _hints(plan.stream, plan.replicas)


def _hints(stream: Stream, replicas: tuple[ReplicaState, ...]) -> Iterator[str]:
    alive = sum(replica.alive for replica in replicas)
    if alive < stream.min_insync_replicas:
        yield (
            f"and afterwards only {alive} of {stream.min_insync_replicas} replicas in sync that an "
            "acknowledgement needs: publishers are refused until more are back, or until "
            f"jetstream stream alter {stream.name} --min-insync-replicas {alive}"
        )
