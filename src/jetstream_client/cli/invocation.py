"""What the commands that ask a cluster have in common: options, the client, how they answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from jetstream_client.cli import options
from jetstream_client.cli.output import emit_json, print_table
from jetstream_client.cli.suggestions import suggest
from jetstream_client.cli.watching import Watch, show
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.errors import StreamNotFoundError

if TYPE_CHECKING:
    from jetstream_client.clients.blocking_client import Client

T = TypeVar("T")

_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_LOGIN = {
    "nats_ca": options.NatsCa,
    "nats_cert": options.NatsCert,
    "nats_key": options.NatsKey,
    "creds": options.Creds,
}


@dataclass(frozen=True, slots=True)
class Invocation:
    """What a command was given besides its own options. json: JSON is wanted."""

    context: typer.Context
    config: ClientConfig
    json: bool
    watch: bool = False

    @contextmanager
    def client(self) -> Iterator[Client]:
        from jetstream_client.clients.blocking_client import Client

        with Client.from_config(self.config) as client:
            try:
                yield client
            except StreamNotFoundError as error:
                suggest(client, self.context.params.get("stream"), error)
                raise

    def answer(self, row: dict[str, Any], text: str) -> None:
        """Say what was done: `row` if JSON is wanted, else `text`."""
        if self.json:
            emit_json(row)
        else:
            print(text)

    def table(
        self,
        columns: Sequence[str],
        found: Iterable[T],
        cells: Callable[[T], Sequence[object]],
        row: Callable[[T], dict[str, Any]],
        nothing: str = "",
    ) -> None:
        """A line for each that was found. nothing: see print_table."""
        if self.json:
            for each in found:
                emit_json(row(each))
        else:
            print_table(columns, map(cells, found), nothing)

    def show(
        self, look: Callable[[], T], draw: Callable[[T], None], draw_json: Callable[[T], None]
    ) -> None:
        """See `watching.show`."""
        show(look, draw_json if self.json else draw, watch=self.watch, lines=self.json)


def common_options(
    *,
    patience: bool = False,
    total: bool = True,
    watch: bool = False,
    nats: bool = False,
    json: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the options that it shares with others, after its own; it gets what they say
    as its first argument, an Invocation. An option that it declares itself stays where it is.

    patience: it does as much as there is to do, and waits so long for each answer. total: otherwise
    whether the timeout is that of all its calls together. watch: it has --watch. nats: it speaks
    to NATS. json: it has --json.
    """
    shared: dict[str, tuple[Any, Any]] = {"watch": (Watch, False)} if watch else {}
    shared["server"] = options.Server, None
    if nats:
        shared["nats"] = options.Nats, None
        shared |= {name: (option, None) for name, option in _LOGIN.items()}
    kind = options.Patience if patience else options.Timeout
    shared["timeout"] = kind, options.DEFAULT_TIMEOUT
    if json:
        shared["json"] = options.Json, False

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        own = dict(list(inspect.signature(command, eval_str=True).parameters.items())[1:])

        def run(context: typer.Context, **given: Any) -> Any:
            values = {name: given[name] if name in own else given.pop(name) for name in shared}
            return command(_invocation(context, values, total=total and not patience), **given)

        run.__name__, run.__doc__ = command.__name__, command.__doc__
        context = inspect.Parameter("context", _KEYWORD, annotation=typer.Context)
        parameters = [context, *_merged(own, shared)]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def _merged(
    own: Mapping[str, inspect.Parameter], shared: Mapping[str, tuple[Any, Any]]
) -> list[inspect.Parameter]:
    """The files that NATS wants stand after its URL. `**settings` stay at the end."""
    added = [
        inspect.Parameter(name, _KEYWORD, default=default, annotation=option)
        for name, (option, default) in shared.items()
        if name not in own
    ]
    merged: list[inspect.Parameter] = []
    for name, each in own.items():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            return [*merged, *added, each]
        merged.append(each.replace(kind=_KEYWORD))
        if name == "nats":
            merged += [each for each in added if each.name in _LOGIN]
            added = [each for each in added if each.name not in _LOGIN]
    return merged + added


def _invocation(context: typer.Context, values: Mapping[str, Any], *, total: bool) -> Invocation:
    watch, login = values.get("watch", False), None
    if "creds" in values:
        login = options.nats_options(*(values[name] for name in _LOGIN))
    config = options.config(context, values["server"], values["timeout"], values.get("nats"), login)
    if total and not watch:
        config = replace(config, total_timeout=config.timeout)
    return Invocation(
        context, config, options.wants_json(context, values.get("json", False)), watch
    )
