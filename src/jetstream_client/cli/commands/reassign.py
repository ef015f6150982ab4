"""`jetstream stream reassign`, `jetstream node decommission`: streams that move to other nodes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.moves import LOOK_SECONDS, Mover, fenced_nodes, observers_after
from jetstream_client.cli.output import emit_json, print_table, printable
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.checks import NODE_MAX
from jetstream_client.values.types import ReplicaMove, Stream
from jetstream_protocol.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    PreconditionFailedError,
    UnavailableError,
)

AtATime = Annotated[
    int, typer.Option("--at-a-time", min=1, help="How many streams are copied at the same time.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")]


@common_options(patience=True)
def reassign(
    cli: Invocation,
    stream: Annotated[
        str | None,
        typer.Argument(metavar="STREAM", help="With --replicas or --observers: the stream."),
    ] = None,
    replicas: Annotated[
        str | None, typer.Option(metavar="NODES", help="The nodes of its replicas: 0,1,2.")
    ] = None,
    observers: Annotated[
        str | None,
        typer.Option(metavar="NODES", help="The nodes of its observers: 3,4; none: it has none."),
    ] = None,
    drain: Annotated[
        int | None,
        typer.Option(metavar="NODE", min=0, max=NODE_MAX, help="Move every replica off this node."),
    ] = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="Spread replicas evenly over the nodes.")
    ] = False,
    at_a_time: AtATime = 4,
    yes: options.Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Move streams to other nodes, with more or fewer replicas.

    The command shows the plan and asks. A stream stays on its old nodes until the new ones have all
    of it. If the command is interrupted, moves that have begun go on; to undo one, name the old
    nodes. A stream whose nodes have changed since the plan is left as it is, with exit code 1. One
    without a leader moves once it has a leader; the command ends with exit code 4 then. An
    observer that is named in --replicas becomes a replica. Observers change at once.

    Examples:

      jetstream stream reassign orders --replicas 0,1,2

      jetstream stream reassign orders --observers 3

      jetstream stream reassign --drain 3 --dry-run

      jetstream stream reassign --balance
    """
    chosen = [stream is not None, drain is not None, balance]
    names_nodes = replicas is not None or observers is not None
    if chosen.count(True) != 1 or (stream is not None) != names_nodes:
        raise typer.BadParameter(
            "give a stream with --replicas or --observers, or --drain NODE, or --balance"
        )
    with cli.client() as client:
        if stream is not None:
            moves = [_move_of(client, stream, replicas, observers)]
        else:
            moves = client.plan_reassignment(drain=drain)
        move_all(client, moves, at_a_time=at_a_time, yes=yes, dry_run=dry_run, as_json=cli.json)


@common_options(patience=True)
def decommission(
    cli: Invocation,
    node: options.NodeId,
    at_a_time: AtATime = 4,
    yes: options.Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Move all replicas off a node, for good.

    The node is drained, and the command goes on until no stream is on it any more. Only then does
    it say that the node is empty. Then stop its process, and remove it from the cluster with
    `node remove`.

    Exit code 4: streams without a leader are left, which no replica can copy. Keep the node's disk.

    Example: jetstream node decommission 3
    """
    with cli.client() as client:
        moves = client.plan_reassignment(drain=node)
        left = _on(client, node)
        if dry_run:
            if not cli.json:
                _show(moves, _not_in(moves, left))
        else:
            question = f"Empty node {node} ({len(left)} streams)?"
            options.confirm(question, "nothing is moved", yes=yes, dry_run=True)
            client.drain_node(node)
            moves, left = _empty(client, node, at_a_time, quiet=cli.json)
        votes = any(each.voter for each in client.describe_cluster().nodes if each.id == node)
    if cli.json:
        emit_json(
            {
                "node": node,
                "empty": not left,
                "moved": not (dry_run or left),
                "moves": [_row(move) for move in moves],
                "left": [stream.full_name for stream in left],
            }
        )
    if left and not dry_run:
        raise UnavailableError(
            f"node {node} is not empty: it is left with {', '.join(s.full_name for s in left)}, "
            "which nobody leads and nobody can copy: keep its disk, and repeat the command once a "
            "leader is there"
        )
    if not (cli.json or dry_run):
        vote = f"first: jetstream voters replace {node} NEW; then " if votes else ""
        print(f"node {node} is empty; {vote}stop it, then: jetstream node remove {node}")


def _empty(
    client: Client, node: int, at_a_time: int, *, quiet: bool
) -> tuple[list[ReplicaMove], list[Stream]]:
    """Move streams away until none is on the node, or only some without a leader. Returns the
    moves, and those streams. quiet: do not show the plans."""
    mover = Mover(client, at_a_time)
    made: list[ReplicaMove] = []
    unseen: set[int] = set()
    while True:
        moves = client.plan_reassignment(drain=node)
        left = _on(client, node)
        planned = {move.stream.id: move.stream.full_name for move in moves}
        # One that is planned twice and not listed was not deleted in between: it is hidden.
        hidden = unseen & set(planned)
        unseen = set(planned) - {stream.id for stream in left}
        if hidden & unseen:
            raise PermissionDeniedError(
                f"node {node} is not empty: you may not describe "
                f"{', '.join(planned[each] for each in sorted(hidden & unseen))}"
            )
        if not moves and all(s.leader < 0 and s.id in mover.leaderless for s in left):
            if not (made or quiet or left):
                print("nothing has to move")
            return made, left
        leaving = [each for each in _not_in(moves, left) if each.target_replicas]
        news = [each for each in leaving if each.id not in mover.seen]
        if not quiet and (moves or news):
            _show(moves, news)
        mover.carry_out(moves, leaving)
        made += [move for move in moves if move.stream.id not in mover.changed]
        time.sleep(LOOK_SECONDS)


def _on(client: Client, node: int) -> list[Stream]:
    """The streams that have a copy on the node, or are to have one."""
    return [
        stream
        for stream in client.list_streams(internal=True)
        if node in (*stream.replicas, *stream.target_replicas, *stream.observers)
    ]


def _not_in(moves: Sequence[ReplicaMove], streams: Sequence[Stream]) -> list[Stream]:
    planned = {move.stream.id for move in moves}
    return [stream for stream in streams if stream.id not in planned]


def _show(moves: Sequence[ReplicaMove], leaving: Sequence[Stream] = ()) -> None:
    """leaving: streams that are being moved already."""
    for each in leaving:
        where = ",".join(map(str, each.target_replicas))
        print(f"{printable(each.full_name)} is being moved already, to {where or 'other nodes'}")
    if moves:
        print_table(("STREAM", "FROM", "TO"), [_cells(move) for move in moves])
    elif not leaving:
        print("nothing has to move")


@common_options()
def remove(cli: Invocation, node: options.NodeId, yes: options.Yes = False) -> None:
    """Remove a node that has stopped and is empty.

    Example: jetstream node remove 3
    """
    with cli.client() as client:
        options.confirm(f"Remove node {node} for good?", "nothing is removed", yes=yes)
        client.remove_node(node)
    cli.answer({"node": node, "removed": True}, f"node {node} is removed")


def move_all(
    client: Client,
    moves: Sequence[ReplicaMove],
    *,
    at_a_time: int,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Show the plan, ask, and carry it out. JSON comes at the end: `moved` is whether all streams
    have moved. Raises PreconditionFailedError if streams are not, or no longer, where the plan
    wanted them, because somebody else has changed that, and UnavailableError if streams wait for a
    leader."""
    mover = Mover(client, at_a_time)
    if not as_json:
        _show(moves)
    _warn_of_unheard(client, moves)
    if moves and not dry_run:
        options.confirm(f"Move {len(moves)} streams?", "nothing is moved", yes=yes, dry_run=True)
        mover.carry_out(moves)
    if as_json:
        moved = not (dry_run or mover.leaderless or mover.changed)
        changed = [move.stream.full_name for move in moves if move.stream.id in mover.changed]
        emit_json({"moved": moved, "moves": [_row(move) for move in moves], "changed": changed})
    if mover.changed:
        raise PreconditionFailedError(
            f"{len(mover.changed)} of {len(moves)} streams changed since the plan and did not move "
            "as planned: look, and make a new plan"
        )
    if mover.leaderless:
        names = [m.stream.full_name for m in moves if m.stream.id in mover.leaderless]
        raise UnavailableError(
            f"nobody leads {', '.join(names)}: until somebody does, nobody can copy what is there"
        )


def _warn_of_unheard(client: Client, moves: Sequence[ReplicaMove]) -> None:
    """Say which streams would wait for a node that may never come."""
    fenced = fenced_nodes(client) if moves else set()
    for move in moves:
        old = (*move.stream.replicas, *move.stream.observers)
        for node in move.replicas:
            if node in fenced and node not in old:
                print(
                    f"node {node} is not heard: {printable(move.stream.full_name)} stays where it "
                    "is until that node is back",
                    file=sys.stderr,
                )


def _move_of(client: Client, name: str, replicas: str | None, observers: str | None) -> ReplicaMove:
    found: Stream = client.describe_stream(name)
    return ReplicaMove(
        found,
        (found.target_replicas or found.replicas)
        if replicas is None
        else _nodes("--replicas", replicas),
        None if observers is None else _observers(observers),
    )


def _observers(text: str) -> tuple[int, ...]:
    return () if text == "none" else _nodes("--observers", text)


def _nodes(option: str, text: str) -> tuple[int, ...]:
    try:
        nodes = tuple(int(each) for each in text.split(","))
    except ValueError:
        raise InvalidRequestError(f"{option} is a list of nodes as 0,1,2, not {text!r}") from None
    if len(set(nodes)) != len(nodes) or not 0 <= min(nodes) <= max(nodes) <= NODE_MAX:
        raise InvalidRequestError(f"{option} names different nodes, not {text!r}")
    return nodes


def _row(move: ReplicaMove) -> dict[str, Any]:
    return {
        "stream": move.stream.full_name,
        "from": list(move.stream.replicas),
        "to": list(move.replicas),
        "observers_from": list(move.stream.observers),
        "observers_to": list(observers_after(move)),
    }


def _cells(move: ReplicaMove) -> tuple[str, str, str]:
    return (
        move.stream.full_name,
        _text(move.stream.replicas, move.stream.observers),
        _text(move.replicas, observers_after(move)),
    )


def _text(replicas: Sequence[int], observers: Sequence[int]) -> str:
    """0,1,2+3: three replicas, and an observer."""
    text = ",".join(map(str, replicas))
    return f"{text}+{','.join(map(str, observers))}" if observers else text
