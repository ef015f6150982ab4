"""The commands and groups below `jetstream`. Each is loaded when somebody asks for it: all of them
take half a second, and help needs only what is said of them here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.main import get_command

from jetstream_client.cli.suggestions import Commands


class _Part(NamedTuple):
    """module, name: where the function or the group is. help: the first sentence of its own."""

    module: str
    name: str
    help: str


PARTS = {
    "publish": _Part(
        "publish", "publish", "Publish to NATS and wait until the streams have stored it."
    ),
    "fetch": _Part(
        "fetch", "fetch", "Print a stream's records by offset; --follow waits for more."
    ),
    "sql": _Part("sql", "sql", "Query streams in SQL (DuckDB)."),
    "export": _Part("export", "export", "Write the records between two positions to a file."),
    "import": _Part("importing", "import_", "Make a new stream of another system's records."),
    "mirror": _Part(
        "importing", "mirror", "Follow a stream of NATS JetStream, until it is cut over."
    ),
    "top": _Part("top", "top", "Show the busiest streams, every 2 seconds, until Ctrl-C."),
    "stream": _Part("streams", "app", "Create, show, alter and delete streams."),
    "schema": _Part("schema", "app", "Say what a stream's values are, for typed columns."),
    "lake": _Part("lake", "app", "Show what is in the lake, and how engines read it."),
    "cursor": _Part("cursor", "app", "Show and move the positions of readers."),
    "consumer": _Part(
        "consumer", "app", "Consumers, whose messages several readers share and acknowledge."
    ),
    "group": _Part("group", "app", "Show, move and delete consumer groups."),
    "dead-letter": _Part(
        "dead_letter", "app", "Show, retry and drop the records that `process` could not handle."
    ),
    "bench": _Part("bench", "app", "Measure publishing, fetching and latency."),
    "cluster": _Part("cluster", "app", "Show the cluster."),
    "node": _Part("cluster", "node_app", "Empty a node for maintenance, or for good."),
    "voters": _Part("voters", "app", "Show and change which nodes vote on the metadata."),
    "context": _Part("contexts", "app", "Save servers, certificates and tokens under names."),
    "token": _Part("tokens", "app", "Make, list and revoke tokens."),
    "acl": _Part("acl", "app", "Rules that say who may do what."),
    "log": _Part("log", "app", "Examine log files offline."),
    "debug": _Part("debug", "app", "Collect information for support."),
}


class _Loaded(Mapping[str, Any]):
    """The commands by name; a command is loaded where it is used."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            self._found[name] = _load(name, PARTS[name])
        return self._found[name]

    def __contains__(self, name: object) -> bool:
        return name in PARTS

    def __iter__(self) -> Iterator[str]:
        return iter(PARTS)

    def __len__(self) -> int:
        return len(PARTS)


class Root(Commands):
    """The root command."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = _Loaded()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, part.help) for name, part in PARTS.items()])


def _load(name: str, part: _Part) -> Any:
    found = getattr(import_module(f"jetstream_client.cli.commands.{part.module}"), part.name)
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    holder.callback()(lambda: None)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
    else:
        holder.command(name)(found)
    command: Any = get_command(holder)
    return command.commands[name]
