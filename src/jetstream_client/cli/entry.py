"""The beginning of `jetstream`: it imports nothing that only the extra `cli` installs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("rich", "typer")


def main() -> None:
    """Run the command. If only the SDK is installed, print how to install the command line."""
    if any(find_spec(module) is None for module in _NEEDED):
        from jetstream_protocol.extras import install_command

        print(
            f"jetstream needs the cli extra; install it with:\n  {install_command('cli')}",
            file=sys.stderr,
        )
        raise SystemExit(1)
    from jetstream_client.cli.main import main as run

    run()
