"""The options of commands that set what a stream keeps, made from the table of settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any

import typer

from jetstream_client.cli.units import parse_duration, parse_size
from jetstream_protocol.settings import FOR_PEOPLE, Kind, Setting

_enum: Any = StrEnum  # Which mypy allows with literal members only.
_NOTHING: Mapping[str, str] = MappingProxyType({})


def with_options(
    settings: Collection[Setting] = FOR_PEOPLE,
    *,
    without: Collection[str] = (),
    after: Mapping[str, str] = _NOTHING,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each of the settings, before its own options. Its
    `**settings` then holds the settings that were given.

    without: settings that have no option here. after: an own option that people see after one of
    the settings.
    """
    shown = [each for each in settings if each.help and each.name not in without]
    names = [each.name for each in shown]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            found = {name: value for name in names if (value := given.pop(name)) is not None}
            command(**given, **{name: _plain(value) for name, value in found.items()})

        own = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]
        first = next(at for at, each in enumerate(own) if each.default is not each.empty)
        parameters = [*own[:first], *map(_parameter, shown), *own[first:]]
        for name, setting in after.items():
            moved = next(each for each in parameters if each.name == name)
            parameters.remove(moved)
            at = [each.name for each in parameters].index(setting)
            parameters.insert(at + 1, moved)
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return run

    return decorate


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, StrEnum) else value


def _parameter(setting: Setting) -> inspect.Parameter:
    hint, option = _option(setting)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[hint, option],
    )


def _option(setting: Setting) -> tuple[Any, Any]:
    """Its type, and how it is parsed."""
    match setting.kind:
        case Kind.DURATION:
            parser: Any = parse_duration
            return float | None, typer.Option(parser=parser, metavar="DURATION", help=setting.help)
        case Kind.BYTES:
            parser = parse_size
            return int | None, typer.Option(parser=parser, metavar="SIZE", help=setting.help)
        case Kind.FLAG:
            name = setting.name.replace("_", "-")
            return bool | None, typer.Option(f"--{name}/--no-{name}", help=setting.help)
        case Kind.CHOICE:
            members = [(each.replace("-", "_"), each) for each in setting.choices]
            choice: Any = _enum("Choice", members)
            return choice | None, typer.Option(help=setting.help)
        case Kind.TEXT:
            return str | None, typer.Option(help=setting.help)
        case Kind.COUNT:
            return int | None, typer.Option(min=setting.minimum, help=setting.help)
