"""`jetstream voters …`: which nodes vote on the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_table
from jetstream_client.values.types import Voters
from jetstream_protocol.errors import InvalidRequestError

app = options.group("voters")


@app.command("list")
@common_options()
def show(cli: Invocation) -> None:
    """Show the voters.

    Example: jetstream voters list
    """
    with cli.client() as client:
        voters = client.list_voters()
    if cli.json:
        emit_json(_row(voters))
        return
    print_table(
        ("NODE", "ADDRESS", "STATE"),
        [(voter.node, voter.address or "-", _state(voters, voter.node)) for voter in voters.voters],
    )
    if not voters.is_committed:
        print("the last change is not agreed on yet")


@app.command()
@common_options(patience=True)
def add(cli: Invocation, node: options.NodeId, yes: options.Yes = False) -> None:
    """Let a node vote that has followed so far.

    Returns once the voters have agreed. An odd number is best: a fourth voter tolerates no more
    failures than three.

    Example: jetstream voters add 3
    """
    _change(cli, added=[node], removed=[], yes=yes)


@app.command()
@common_options(patience=True)
def remove(cli: Invocation, node: options.NodeId, yes: options.Yes = False) -> None:
    """Take a node's vote. It goes on following, if it runs.

    Example: jetstream voters remove 3
    """
    _change(cli, added=[], removed=[node], yes=yes)


@app.command()
@common_options(patience=True)
def replace(
    cli: Invocation,
    old: Annotated[
        int,
        typer.Argument(
            metavar="OLD", min=0, max=options.NODE_MAX, help="The node that loses its vote."
        ),
    ],
    new: Annotated[
        int,
        typer.Argument(
            metavar="NEW", min=0, max=options.NODE_MAX, help="The node that votes instead."
        ),
    ],
    yes: options.Yes = False,
) -> None:
    """Let one node vote instead of another, such as one that is lost.

    The new one is added first. If the command is interrupted, repeat it.

    Example: jetstream voters replace 2 3
    """
    if old == new:
        raise typer.BadParameter("name two different nodes")
    _change(cli, added=[new], removed=[old], yes=yes)


def _change(cli: Invocation, *, added: Sequence[int], removed: Sequence[int], yes: bool) -> None:
    """Show the voters before and after, ask, and change one after the other."""
    with cli.client() as client:
        before = client.list_voters().nodes
        after = tuple(sorted({*before, *added} - set(removed)))
        if not after:
            raise InvalidRequestError("the last voter stays")
        if after == before:
            cli.answer(_row(client.list_voters()), f"the voters are {_names(after)} already")
            return
        question = f"The voters are {_names(before)}. Change them to {_names(after)}?"
        options.confirm(question, "the voters stay as they are", yes=yes)
        now = set(before)
        for node in added:
            now |= {node}
            voters = client.change_voters(sorted(now))
        for node in removed:
            if node in now:
                now -= {node}
                voters = client.change_voters(sorted(now))
        cli.answer(_row(voters), f"the voters are {_names(voters.nodes)}")


def _names(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes))


def _state(voters: Voters, node: int) -> str:
    if node == voters.leader:
        return "leads"
    return "linked" if node in voters.linked else f"not linked to node {voters.answering_node}"


def _row(voters: Voters) -> dict[str, Any]:
    return {
        "voters": [
            {
                "node": voter.node,
                "address": voter.address,
                "leader": voter.node == voters.leader,
                "linked": voter.node in voters.linked,
            }
            for voter in voters.voters
        ],
        "agreed": voters.is_committed,
    }
