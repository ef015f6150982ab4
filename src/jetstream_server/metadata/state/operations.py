"""Every metadata command with the function that decides it, and the rules for proposing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from jetstream_protocol.errors import PreconditionFailedError, UnavailableError
from jetstream_server.metadata.state import (
    activity,
    commands,
    leadership_commands,
    node_commands,
    reassignment_commands,
    security_commands,
    stream_commands,
)
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.decision import Decision
from jetstream_server.metadata.state.tables import Tables

CommandT = TypeVar("CommandT", bound=Command)

REPEATABLE = (commands.RegisterNode.op, commands.SetCluster.op, commands.Barrier.op)
"""Commands that a process may propose before it has an incarnation."""


class Operation(NamedTuple, Generic[CommandT]):
    """A command and the function that decides it. The function changes nothing; it raises a
    JetstreamError to refuse."""

    command: type[CommandT]
    decide: Callable[[Tables, CommandT], Decision]


OPERATIONS: dict[str, Operation[Any]] = {
    operation.command.op: operation
    for operation in (
        Operation(commands.CreateStream, stream_commands.create_stream),
        Operation(commands.DeleteStream, stream_commands.delete_stream),
        Operation(commands.AlterStream, stream_commands.alter_stream),
        Operation(commands.PurgeStream, stream_commands.purge_stream),
        Operation(commands.SetStreamAccess, stream_commands.set_stream_access),
        Operation(commands.ConfirmFlush, stream_commands.confirm_flush),
        Operation(commands.ReassignStream, reassignment_commands.reassign_stream),
        Operation(commands.FinishReassignment, reassignment_commands.finish_reassignment),
        Operation(commands.ChangeIsr, leadership_commands.change_isr),
        Operation(commands.TransferLeader, leadership_commands.transfer_leader),
        Operation(commands.ElectLeader, leadership_commands.elect_leader),
        Operation(commands.DistrustReplica, leadership_commands.distrust_replica),
        Operation(commands.ReportLeader, leadership_commands.report_leader),
        Operation(commands.RegisterNode, node_commands.register_node),
        Operation(commands.FenceNode, node_commands.fence_node),
        Operation(commands.UnfenceNode, node_commands.unfence_node),
        Operation(commands.DrainNode, node_commands.drain_node),
        Operation(commands.RemoveNode, node_commands.remove_node),
        Operation(commands.ClaimController, node_commands.claim_controller),
        Operation(commands.SetCluster, node_commands.set_cluster),
        Operation(commands.Barrier, node_commands.barrier),
        Operation(commands.CreateToken, security_commands.create_token),
        Operation(commands.RevokeToken, security_commands.revoke_token),
        Operation(commands.AddAcl, security_commands.add_acl),
        Operation(commands.RemoveAcl, security_commands.remove_acl),
        Operation(commands.BootstrapSecurity, security_commands.bootstrap_security),
        Operation(commands.TrimActivity, activity.trim_activity),
        Operation(commands.NoteCursors, activity.note_cursors),
    )
}


def check_feature(tables: Tables, needed: int, what: str) -> None:
    """Raise PreconditionFailedError for what some node does not understand yet, because it needs
    that level, and UnavailableError until the cluster has noticed that all nodes do."""
    level = tables.settings.feature_level
    if needed > level:
        behind = [
            node_id
            for node_id, node in sorted(tables.nodes.items())
            if node.feature_level_max < needed
        ]
        lacking = f"{what} needs feature level {needed}, and the cluster is at {level}"
        if not behind:
            raise UnavailableError(f"{lacking}: it is about to be raised; try again")
        raise PreconditionFailedError(
            f"{lacking}: nodes {behind} run older software; "
            "see docs/operations/upgrades.md, Updating the software"
        )
