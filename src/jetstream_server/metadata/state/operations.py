"""Every metadata command with the function that decides it, and the rules for proposing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from jetstream_protocol.errors import PreconditionFailedError, UnavailableError
from jetstream_server.metadata.state import (
    activity,
    commands,
    lake_decisions,
    leadership_decisions,
    node_decisions,
    reassignment_decisions,
    security_decisions,
    stream_decisions,
)
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.tables import Tables

CommandT = TypeVar("CommandT", bound=Command)

REPEATABLE = (commands.RegisterNode.op, commands.SetCluster.op, commands.Barrier.op)
"""Commands that a process may propose before it has an incarnation."""


class Operation(NamedTuple, Generic[CommandT]):
    """A command and the function that decides it. The function changes nothing; it raises a
    JetstreamError to refuse. about: what a caller's command is about, of which no late copy may
    undo a later change (last_changes.py); "": a late copy does no harm."""

    command: type[CommandT]
    decide: Callable[[Tables, CommandT], Decision]
    about: Callable[[Tables, CommandT], str] = lambda _tables, _command: ""


def _stream(tables: Tables, command: Any) -> str:
    stream = tables.streams.get(command.stream_id)
    return "" if stream is None else stream.full_name


def _new_stream(_: Tables, command: commands.CreateStream) -> str:
    return "" if command.internal else f"{command.name}@{command.subject}"


def _node(_: Tables, command: Any) -> str:
    return f"node {command.node_id}"


def _cluster(_: Tables, command: commands.SetCluster) -> str:
    return "the cluster"


def _token(_: Tables, command: Any) -> str:
    return f"token {command.token_id}"


def _principal(tables: Tables, command: commands.AddAcl | commands.RemoveAcl) -> str:
    if isinstance(command, commands.AddAcl):
        return f"the rules of {command.principal}"
    rule = tables.security.rules.get(command.rule_id)
    return "" if rule is None else f"the rules of {rule.principal}"


OPERATIONS: dict[str, Operation[Any]] = {
    operation.command.op: operation
    for operation in (
        Operation(commands.CreateStream, stream_decisions.create_stream, _new_stream),
        Operation(commands.DeleteStream, stream_decisions.delete_stream, _stream),
        Operation(commands.AlterStream, stream_decisions.alter_stream, _stream),
        Operation(commands.PurgeStream, stream_decisions.purge_stream),
        Operation(commands.SetStreamAccess, stream_decisions.set_stream_access, _stream),
        Operation(commands.SetSchema, stream_decisions.set_schema, _stream),
        Operation(commands.ConfirmFlush, stream_decisions.confirm_flush),
        Operation(commands.CommitLake, lake_decisions.commit_lake),
        Operation(commands.AdoptLake, lake_decisions.adopt_lake),
        Operation(commands.ReassignStream, reassignment_decisions.reassign_stream, _stream),
        Operation(commands.FinishReassignment, reassignment_decisions.finish_reassignment),
        Operation(commands.ChangeIsr, leadership_decisions.change_isr),
        Operation(commands.TransferLeader, leadership_decisions.transfer_leader),
        Operation(commands.ElectLeader, leadership_decisions.elect_leader),
        Operation(commands.DistrustReplica, leadership_decisions.distrust_replica),
        Operation(commands.ReportLeader, leadership_decisions.report_leader),
        Operation(commands.RegisterNode, node_decisions.register_node),
        Operation(commands.FenceNode, node_decisions.fence_node),
        Operation(commands.UnfenceNode, node_decisions.unfence_node),
        Operation(commands.DrainNode, node_decisions.drain_node, _node),
        Operation(commands.NoteDisk, node_decisions.note_disk),
        Operation(commands.RemoveNode, node_decisions.remove_node, _node),
        Operation(commands.ClaimController, node_decisions.claim_controller),
        Operation(commands.SetCluster, node_decisions.set_cluster, _cluster),
        Operation(commands.Barrier, node_decisions.barrier, lambda _, command: command.about),
        Operation(commands.CreateToken, security_decisions.create_token, _token),
        Operation(commands.RevokeToken, security_decisions.revoke_token, _token),
        Operation(commands.AddAcl, security_decisions.add_acl, _principal),
        Operation(commands.RemoveAcl, security_decisions.remove_acl, _principal),
        Operation(commands.BootstrapSecurity, security_decisions.bootstrap_security),
        Operation(commands.TrimActivity, activity.trim_activity),
        Operation(commands.NoteCursors, activity.note_cursors),
    )
}


def check_feature(tables: Tables, needed: int, what: str) -> None:
    """Raise PreconditionFailedError for what some node does not understand yet, because it needs
    that level, and UnavailableError until the cluster has noticed that all nodes do."""
    level = tables.settings.feature_level
    if needed > level:
        older = [
            node_id
            for node_id, node in sorted(tables.nodes.items())
            if node.feature_level_max < needed
        ]
        lacking = f"{what} needs feature level {needed}, and the cluster is at {level}"
        if not older:
            raise UnavailableError(f"{lacking}: it is about to be raised; try again")
        raise PreconditionFailedError(
            f"{lacking}: nodes {older} run older software; "
            "see docs/operations/upgrades.md, Updating the software"
        )
