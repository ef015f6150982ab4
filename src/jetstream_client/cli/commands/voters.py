"""`jetstream voters …`: which nodes vote on the metadata."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.output import emit_json, print_table
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import Voters
from jetstream_protocol.errors import InvalidRequestError

app = options.group("Show and change which nodes vote on the metadata.")


@app.command("list")
def show(
    context: typer.Context,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Show the voters.

    Example: jetstream voters list
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
        voters = client.list_voters()
    if options.wants_json(context, json):
        emit_json(_row(voters))
        return
    print_table(
        ("NODE", "ADDRESS", "STATE"),
        [(voter.node, voter.address or "-", _state(voters, voter.node)) for voter in voters.voters],
    )
    if not voters.is_committed:
        print("the last change is not agreed on yet")


@app.command()
def add(
    context: typer.Context,
    node: options.NodeId,
    yes: options.Yes = False,
    server: options.Server = None,
    timeout: options.Patience = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Let a node vote that has followed so far.

    Returns once the voters have agreed. An odd number is best: a fourth voter tolerates no more
    failures than three.

    Example: jetstream voters add 3
    """
    _change(context, server, timeout, added=[node], removed=[], yes=yes, as_json=json)


@app.command()
def remove(
    context: typer.Context,
    node: options.NodeId,
    yes: options.Yes = False,
    server: options.Server = None,
    timeout: options.Patience = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Take a node's vote. It goes on following, if it runs.

    Example: jetstream voters remove 3
    """
    _change(context, server, timeout, added=[], removed=[node], yes=yes, as_json=json)


@app.command()
def replace(
    context: typer.Context,
    old: Annotated[
        int, typer.Argument(min=0, max=options.NODE_MAX, help="The node that loses its vote.")
    ],
    new: Annotated[
        int, typer.Argument(min=0, max=options.NODE_MAX, help="The node that votes instead.")
    ],
    yes: options.Yes = False,
    server: options.Server = None,
    timeout: options.Patience = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Let one node vote instead of another, such as one that is lost.

    The new one is added first. If the command is interrupted, repeat it.

    Example: jetstream voters replace 2 3
    """
    if old == new:
        raise typer.BadParameter("name two different nodes")
    _change(context, server, timeout, added=[new], removed=[old], yes=yes, as_json=json)


def _change(
    context: typer.Context,
    server: options.Server,
    timeout: options.Patience,
    *,
    added: Sequence[int],
    removed: Sequence[int],
    yes: bool,
    as_json: bool,
) -> None:
    """Show the voters before and after, ask, and change one after the other."""
    with Client.from_config(options.config(context, server, timeout)) as client:
        before = client.list_voters().nodes
        after = tuple(sorted({*before, *added} - set(removed)))
        wants_json = options.wants_json(context, as_json)
        if not after:
            raise InvalidRequestError("the last voter stays")
        if after == before:
            _tell(client.list_voters(), wants_json, f"the voters are {_names(after)} already")
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
        _tell(voters, wants_json, f"the voters are {_names(voters.nodes)}")


def _tell(voters: Voters, as_json: bool, text: str) -> None:
    if as_json:
        emit_json(_row(voters))
    else:
        print(text)


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
