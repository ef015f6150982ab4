"""The root command: its parts, and what happens on every failure."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any, NoReturn

import typer

from jetstream_client.cli import options
from jetstream_client.cli.connecting import tls_of
from jetstream_client.cli.exits import (
    ClickError,
    Exit,
    UsageError,
    complain,
    exit_of,
    forget_stdout,
    prepare_output,
)
from jetstream_client.cli.parts import Root
from jetstream_client.cli.suggestions import extra_argument_hint, instead_of
from jetstream_client.sql import QueryError
from jetstream_protocol.errors import JetstreamError

app = typer.Typer(
    name="jetstream",
    cls=Root,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # See options.group.
    context_settings={"help_option_names": ["-h", "--help"]},
)


_ITS_WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "not a whole number",
    "Input should be greater than or equal to": "it must be at least",
    "Input should be less than or equal to": "it must be at most",
}
"""What typer's validation library says to programmers, and what it means to who types."""


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"jetstream {version('jetstream-log')}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    server: options.Server = None,
    timeout: options.TimeoutBefore = None,
    json: options.Json = False,
    context_name: options.ContextName = None,
    tls: options.Tls = False,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A durable log for NATS subjects: publish, fetch by offset, manage streams.

    Begin with a server (jetstream-server --dev), then:

      jetstream stream create orders --subject 'orders.>'

      jetstream publish orders.eu hello

      jetstream fetch orders

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such stream or node, 4 no server answered in
    time, 5 outcome unknown, 6 damaged log files, 7 the cluster is not healthy, 130 Ctrl-C or the
    answer no, 141 the reader of the output is gone.
    """
    options.options_before(context, server, timeout, json)
    context.obj.tls = tls_of(tls, ca, cert, key)
    context.obj.context = context_name


def main() -> NoReturn:
    """Run the command and exit."""
    prepare_output()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # Warnings are for developers, not for users.
    code = run()
    if code == Exit.INTERRUPTED:
        # After an interrupt an orderly clean-up is not possible.
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code. Failures are one line on stderr."""
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except JetstreamError as error:
        complain(error.message, keep_lines=isinstance(error, QueryError))
        for note in getattr(error, "__notes__", ()):
            complain(note)
        return exit_of(error)
    except UsageError as error:
        return _misused(error)
    except ClickError as error:
        complain(error.format_message())
        return Exit.FAILED
    except (KeyboardInterrupt, typer.Abort):
        return Exit.INTERRUPTED
    except SystemExit as error:
        # typer turns a broken pipe into this, and nothing else.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _unread()
    except BrokenPipeError:
        return _unread()
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        complain(f"{where}{error.strerror or error}")
        return Exit.FAILED
    return code if isinstance(code, int) else Exit.OK


def _misused(error: Any) -> int:
    """One line, and where to read more. Without any arguments the help itself has been shown."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.message.rstrip())
    else:
        command = error.ctx.command_path if error.ctx else "jetstream"
        # typer lets its validation library put the name of the exception in front.
        message = error.format_message().replace(": Value error, ", ": ").rstrip(".")
        for theirs, ours in _ITS_WORDS.items():
            message = message.replace(theirs, ours)
        option = getattr(error, "option_name", "")
        if type(error).__name__ == "NoSuchOption":
            program = error.ctx.find_root().command_path if error.ctx else "jetstream"
            if instead := instead_of(command, option, program):
                message = f"No such option: {option}; {instead}"
        if "extra argument" in message and (hint := extra_argument_hint(command, message)):
            message += f": {hint}"
        end = "" if message.endswith("?") else "."
        complain(f"{message}{end} See: {command} --help")
    return Exit.USAGE


def _unread() -> int:
    forget_stdout()
    return Exit.BROKEN_PIPE
