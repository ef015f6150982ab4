"""Shell completion of names, subjects and numbers of nodes, from the cluster. `jetstream
--install-completion` sets it up. Completion shows no errors: if the cluster does not answer within
`PATIENCE_SECONDS`, it offers nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from jetstream_client.cli.connecting import Common, reached, tls_of
from jetstream_client.cli.context_file import ContextFile
from jetstream_protocol.errors import JetstreamError

if TYPE_CHECKING:
    from jetstream_client.clients.blocking_client import Client
    from jetstream_client.values.types import Stream

PATIENCE_SECONDS = 1.0

T = TypeVar("T")


def complete_stream(context: typer.Context, incomplete: str) -> list[str]:
    """Names; `name@subject` where a name alone is ambiguous."""
    streams = _streams(context)
    names = [stream.name for stream in streams]
    offered = [each.name if names.count(each.name) == 1 else each.full_name for each in streams]
    return [name for name in offered if name.startswith(incomplete)]


def complete_subject(context: typer.Context, incomplete: str) -> list[str]:
    """The subjects of streams up to the first wildcard; the publisher completes them."""
    offered = {_literal(stream.subject): None for stream in _streams(context)}
    return [subject for subject in offered if subject and subject.startswith(incomplete)]


def complete_cursor(context: typer.Context, incomplete: str) -> list[str]:
    return _starting(
        incomplete, (each.name for each in _asked(context, lambda client: client.list_cursors()))
    )


def complete_consumer(context: typer.Context, incomplete: str) -> list[str]:
    """Of the stream that stands before it."""
    stream = _option(context, "stream")
    if not stream:
        return []
    found = _asked(context, lambda client: client.list_consumers(stream))
    return _starting(incomplete, (each.name for each in found))


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Consumer groups."""
    return _starting(
        incomplete, (each.name for each in _asked(context, lambda client: client.list_groups()))
    )


def complete_node(context: typer.Context, incomplete: str) -> list[str]:
    nodes = _asked(context, lambda client: client.describe_cluster().nodes)
    return _starting(incomplete, (str(each.id) for each in nodes))


def complete_context(incomplete: str) -> list[str]:
    """From the file of contexts."""
    try:
        return _starting(incomplete, ContextFile().contexts)
    except JetstreamError:
        return []


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    """Each once, in order."""
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _literal(subject: str) -> str:
    """`orders.` of `orders.*.new`."""
    tokens = subject.split(".")
    wild = next((at for at, token in enumerate(tokens) if token in ("*", ">")), len(tokens))
    return ".".join(tokens[:wild]) + ("." if 0 < wild < len(tokens) else "")


def _streams(context: typer.Context) -> list[Stream]:
    return _asked(context, lambda client: client.list_streams())


def _asked(context: typer.Context, ask: Callable[[Client], Iterable[T]]) -> list[T]:
    from jetstream_client.clients.blocking_client import Client

    try:
        tls = tls_of(*(_option(context, name) for name in ("tls", "ca", "cert", "key")))
        before = Common(tls=tls, context=_option(context, "context_name"))
        config = reached(_option(context, "server"), before, PATIENCE_SECONDS)
        with Client.from_config(config) as client:
            return list(ask(client))
    except JetstreamError:
        return []


def _option(context: typer.Context, option: str) -> Any:
    """The option's value in the half-written command, at any level; None: it is not there."""
    level: Any = context
    while level is not None:
        if level.params.get(option):
            return level.params[option]
        level = level.parent
    return None
