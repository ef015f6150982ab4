"""Names of commands in other tools. Using one gives an error that names the command of this tool.
They are not aliases: each command has one name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from jetstream_client.cli.exits import UsageError
from jetstream_protocol.errors import JetstreamError, StreamNotFoundError
from jetstream_protocol.stream_names import did_you_mean

if TYPE_CHECKING:
    from jetstream_client.clients.blocking_client import Client

_WORDS = {
    "stream list": ("ls", "list", "streams", "topics", "partitions"),
    "stream create": ("add", "new", "create", "mk"),
    "stream describe": ("info", "show", "describe", "get", "inspect"),
    "stream alter": ("edit", "update", "set", "alter", "config"),
    "stream delete": ("rm", "del", "remove", "delete", "destroy"),
    "stream readonly": ("seal", "lock", "readonly", "read-only", "freeze"),
    "stream pause": ("stop", "suspend", "pause"),
    "stream resume": ("start", "continue", "resume", "unpause"),
    "stream purge": ("purge", "truncate", "clear", "empty", "trim"),
    "stream reassign": ("reassign", "move", "rebalance"),
    "stream elect": ("elect",),
    "cursor list": ("cursors", "ls"),
    "consumer list": ("consumers", "ls"),
    "consumer create": ("add", "new"),
    "consumer describe": ("info", "show"),
    "consumer delete": ("rm", "del", "remove"),
    "group list": ("groups", "ls"),
    "group describe": ("show", "info"),
    "cursor describe": ("show", "info"),
    "cursor seek": ("reset", "seek", "rewind"),
    "cursor delete": ("rm", "del", "remove"),
    "fetch": ("cat", "consume", "sub", "subscribe", "read", "view"),
    "fetch --follow": ("tail", "follow", "watch"),
    "publish": ("pub", "produce", "send", "put"),
    "sql": ("query", "select"),
    "export": ("dump",),
    "cluster status": ("status", "info", "nodes", "ls", "describe", "brokers", "broker"),
    "cluster health": ("health", "doctor"),
    "cluster record-activity": ("activity", "audit", "events"),
    "node drain": ("drain", "maintenance"),
    "log verify": ("verify", "check"),
}
"""Names here, and names elsewhere. If several match, the first counts, unless another is of the
group in which the name was used."""


_PHRASES = {
    "topic list": "stream list",
    "topic create": "stream create",
    "topic describe": "stream describe",
    "topic delete": "stream delete",
    "topic alter-config": "stream alter",
    "topic add-partitions": "stream create-group",
    "topic trim-prefix": "stream purge",
    "topic produce": "publish",
    "topic consume": "fetch",
    "topic": "stream",
    "node list": "cluster status",
    "node describe": "cluster status",
    "node undrain": "node drain --undo",
    "node uncordon": "node drain --undo",
    "stream report": "stream list",
    "stream find": "stream list --feeding",
    "stream view": "fetch",
    "stream get": "fetch",
    "stream copy": "stream backup",
    "stream peer-remove": "stream reassign",
    "stream cluster": "stream transfer-leader",
    "stream produce": "publish",
    "stream consume": "fetch",
    "consumer next": "fetch",
    "consumer-groups": "group list",
    "cluster partitions": "stream list",
    "cluster logdirs": "stream list",
    "cluster metadata": "cluster status",
    "cluster config": "cluster alter",
    "cluster settings": "cluster alter",
    "cluster throttle": "cluster alter --copy-bytes-per-second",
    "cluster maintenance": "node drain",
    "cluster partitions-balancer-status": "stream reassign --balance",
    "cluster self-test": "bench",
    "server check": "cluster health",
    "server": "cluster status",
    "rtt": "cluster health",
    "metadata": "cluster status",
    "lag": "group list",
    "offsets": "cursor list",
    "reset-offsets": "group seek",
    "events": "sql",
    "account": "acl list",
    "security acl": "acl",
    "security user": "token create",
    "security": "acl",
    "user": "token create",
    "profile create": "context add",
    "profile use": "context use",
    "profile list": "context list",
    "profile": "context",
    "context select": "context use",
    "context save": "context add",
    "context create": "context add",
    "backup": "stream backup",
    "restore": "stream restore",
    "latency": "bench latency",
    "perf": "bench",
    "version": "--version",
    "help": "--help",
    "completion": "--install-completion",
}
"""Commands of nats, rpk and the scripts of Kafka that are not named as ours."""

_ALIASES = {"ls": ("list",), "rm": ("delete", "remove", "revoke")}
"""Short names that work: the first of those that the group has."""

_OPTIONS = {
    ("stream alter", "--replicas"): "to change the replicas: {} stream reassign STREAM --replicas",
    ("stream alter", "--replication-factor"): "to change the replicas: {} stream reassign STREAM "
    "--replicas",
    ("stream alter", "--subject"): "a stream keeps its subject: create another stream",
    ("stream alter", "--name"): "a stream keeps its name: create another stream",
    ("stream alter", "--group"): "a stream keeps its group: create another stream",
    ("stream alter", "--streams"): "a keyed group grows by: {} stream create-group",
    ("stream alter", "--partitions"): "a keyed group grows by: {} stream create-group",
    ("stream alter", "--readonly"): "to refuse records: {} stream readonly STREAM",
    ("stream create", "--partitions"): "streams that share a subject: {} stream create-group",
    ("fetch", "--group"): "groups are for programs; to see or move one: {} group --help",
    ("fetch", "--count"): "say --max",
    ("fetch", "--max-messages"): "say --max",
    ("fetch", "--num"): "say --max",
    ("fetch", "--last"): "say --from -1",
    ("fetch", "-c"): "say -n, or --max",
    ("fetch", "-e"): "it ends with the last record, unless --follow is given",
    ("fetch", "-g"): "groups are for programs; to see or move one: {} group --help",
    ("fetch", "-G"): "groups are for programs; to see or move one: {} group --help",
    ("publish", "--topic"): "the subject is an argument: {} publish SUBJECT VALUE",
    ("publish", "-t"): "the subject is an argument: {} publish SUBJECT VALUE",
    ("publish", "-l"): "say --lines",
    ("publish", "--property"): "say --key and --header",
    ("stream create", "--retention"): "say --max-age, --max-bytes or --max-messages",
    ("stream alter", "--retention"): "say --max-age, --max-bytes or --max-messages",
    ("stream create", "--max-msgs"): "say --max-messages",
    ("stream create", "--subjects"): "say --subject",
    ("stream create", "--dupe-window"): "say --duplicate-window",
    ("stream create", "--max-msg-size"): "say --max-message-bytes",
    ("stream create", "--config"): "settings are options, as --max-age 7d",
    ("stream create", "-c"): "settings are options, as --max-age 7d",
    ("stream create", "-p"): "streams that share a subject: {} stream create-group",
    ("stream create", "-r"): "say --replicas",
    ("stream list", "--sort"): "the busiest first: {} top",
    ("stream purge", "--to"): "say --before",
    ("stream purge", "--seq"): "say --before OFFSET",
    ("stream purge", "--keep"): "say --before -N",
    ("stream transfer-leader", "--to"): "the node is an argument: {} stream transfer-leader "
    "STREAM NODE",
    ("stream restore", "--name"): "the new name is an argument: {} stream restore FOLDER NAME",
    ("group seek", "--to-earliest"): "say --to earliest",
    ("group seek", "--to-latest"): "say --to latest",
    ("group seek", "--to-offset"): "say --to OFFSET",
    ("group seek", "--to-datetime"): "say --to TIME",
}
"""What is not an option of a command, and what to use in its place."""

_OPTIONS_OF_ALL = {
    "--bootstrap-server": "say --server",
    "--bootstrap-servers": "say --server",
    "--broker-list": "say --server",
    "--brokers": "say --server",
    "--zookeeper": "say --server",
    "-b": "say -s, or --server",
    "-X": "say --server, --ca, --cert and --key, or --context",
    "--command-config": "say --ca, --cert and --key, or --context",
    "--producer.config": "say --ca, --cert and --key, or --context",
    "--consumer.config": "say --ca, --cert and --key, or --context",
    "--topic": "the stream is an argument: {} fetch STREAM",
    "-t": "the stream is an argument: {} fetch STREAM",
    "-C": "to read: {} fetch STREAM",
    "-P": "to publish: {} publish SUBJECT",
    "-L": "to list streams: {} stream list",
    "-J": "say --json",
    "-Q": "to find an offset by time: {} fetch STREAM --from TIME --max 1",
    "--list": "to list streams: {} stream list",
    "--describe": "to show a stream: {} stream describe STREAM",
    "--create": "to create a stream: {} stream create NAME --subject SUBJECT",
    "--delete": "to delete a stream: {} stream delete STREAM",
    "--alter": "to change a stream: {} stream alter STREAM",
    "--reset-offsets": "to move a group: {} group seek GROUP --to POSITION",
    "--from-beginning": "say --from earliest",
    "--since": "say --from, as in --from 1h",
    "--until": "say --to",
    "--partition": "a stream is one partition: name the stream",
    "--partitions": "a stream is one partition; several: {} stream create-group",
    "-p": "a stream is one partition: name the stream",
    "--replication-factor": "say --replicas",
    "--timeout-ms": "say --timeout, in seconds",
    "--password": "say --context, or $JETSTREAM_TOKEN",
    "--user": "say --context, or $JETSTREAM_TOKEN",
}
"""The same for every command."""


def instead_of(command_path: str, option: str, program: str) -> str:
    """What to use in place of an option that the command does not have; "": not known."""
    for (command, name), text in _OPTIONS.items():
        if name == option and command_path.endswith(f" {command}"):
            return text.format(command_path.removesuffix(f" {command}"))
    return _OPTIONS_OF_ALL.get(option, "").format(program)


def extra_argument_hint(command_path: str, message: str) -> str:
    """What to say about an argument too many; "": nothing."""
    if command_path.endswith(" fetch") and "%" in message:
        return "a format is --format, and -f is --follow"
    if command_path.endswith(" export"):
        return "say --output FILE"
    if command_path.endswith(" cursor seek"):
        return f"the position is an argument: {command_path} CURSOR STREAM POSITION"
    return ""


def meant_by(word: str, group: str = "", following: str = "") -> str:
    """The command that `word` names in other tools, used within `group` ("stream"), or before the
    word `following`; "": none."""
    front = f"{group} {word}".strip()
    for phrase in (f"{front} {following}", front):
        if phrase in _PHRASES:
            return _PHRASES[phrase]
    found = [command for command, words in _WORDS.items() if word in words]
    own = [command for command in found if group and command.startswith(f"{group} ")]
    return next(iter(own + found), "")


def suggest(client: Client, asked: object, error: StreamNotFoundError) -> None:
    """Put the name that was meant into the error, if there is a stream or a keyed group of a name
    like `asked`, the stream that the command was given."""
    if not isinstance(asked, str) or "@" in asked:
        return
    try:
        streams = client.list_streams()
    except JetstreamError:
        return
    names = [name for each in streams for name in (each.group, each.name) if name]
    error.message += did_you_mean(asked, names)


class Commands(TyperGroup):
    """A group of commands that suggests the command its user may have meant."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = (each for each in _ALIASES.get(cmd_name, ()) if each in self.commands)
        return super().get_command(ctx, next(own, cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            program, _, group = ctx.command_path.rpartition(" ") if ctx.parent else ("", "", "")
            following = next(iter(args[1:2]), "")
            meant = meant_by(args[0], group, following) if args else ""
            if meant:
                program = program or ctx.command_path
                error.message = f"No such command {args[0]!r}. Did you mean '{program} {meant}'?"
            raise
