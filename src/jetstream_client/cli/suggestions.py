"""Names of commands in other tools. Using one gives an error that names the command of this tool.
They are not aliases: each command has one name.
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from jetstream_client.cli.exits import UsageError

_WORDS = {
    "stream list": ("ls", "list", "streams", "topics"),
    "stream create": ("add", "new", "create", "mk"),
    "stream describe": ("info", "show", "describe", "get", "inspect"),
    "stream alter": ("edit", "update", "set", "alter", "config"),
    "stream delete": ("rm", "del", "remove", "delete", "destroy"),
    "stream readonly": ("seal", "lock", "readonly", "read-only", "freeze"),
    "stream pause": ("stop", "suspend", "pause"),
    "stream resume": ("start", "continue", "resume", "unpause"),
    "stream purge": ("purge", "truncate", "clear", "empty", "trim"),
    "cursor list": ("consumers", "cursors", "ls"),
    "group list": ("groups", "ls"),
    "group describe": ("show", "info"),
    "cursor describe": ("show", "info"),
    "cursor seek": ("reset", "seek", "rewind"),
    "cursor delete": ("rm", "del", "remove"),
    "fetch": ("cat", "consume", "sub", "subscribe", "read", "view"),
    "fetch --follow": ("tail", "follow", "watch"),
    "publish": ("pub", "produce", "send", "put"),
    "sql": ("query", "select"),
    "export": ("dump", "backup"),
    "cluster status": ("status", "info", "nodes", "ls"),
    "cluster health": ("health", "doctor"),
    "node drain": ("drain", "maintenance"),
    "log verify": ("verify", "check"),
}
"""Names here, and names elsewhere. If several match, the first counts, unless another is of the
group in which the name was used."""


_OPTIONS = {
    ("stream alter", "--replicas"): "to change the replicas: {} stream reassign STREAM --replicas",
    ("stream alter", "--subject"): "a stream keeps its subject: create another stream",
    ("stream alter", "--name"): "a stream keeps its name: create another stream",
    ("stream alter", "--group"): "a stream keeps its group: create another stream",
    ("stream alter", "--streams"): "a keyed group grows by: {} stream create-group",
    ("stream alter", "--partitions"): "a keyed group grows by: {} stream create-group",
    ("stream alter", "--readonly"): "to refuse records: {} stream readonly STREAM",
    ("stream create", "--partitions"): "streams that share a subject: {} stream create-group",
}
"""What is not an option of a command, and what to use in its place."""


def instead_of(command_path: str, option: str) -> str:
    """What to use in place of an option that the command does not have; "": not known."""
    for (command, name), text in _OPTIONS.items():
        if name == option and command_path.endswith(f" {command}"):
            return text.format(command_path.removesuffix(f" {command}"))
    return ""


def meant_by(word: str, group: str = "") -> str:
    """The command that `word` names in other tools, used within `group` ("stream"); "": none."""
    found = [command for command, words in _WORDS.items() if word in words]
    own = [command for command in found if group and command.startswith(f"{group} ")]
    return next(iter(own + found), "")


class Commands(TyperGroup):
    """A group of commands that suggests the command its user may have meant."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            program, _, group = ctx.command_path.rpartition(" ") if ctx.parent else ("", "", "")
            meant = meant_by(args[0], group) if args else ""
            if meant:
                program = program or ctx.command_path
                error.message = f"No such command {args[0]!r}. Did you mean '{program} {meant}'?"
            raise
