"""The beginning of `jetstream`: it imports nothing that only the extra `cli` installs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("rich", "typer")


class _WithoutPandas:
    """pyarrow loads pandas wherever it is installed, for two seconds. No command uses it."""

    def find_spec(self, name: str, path: object, target: object = None, /) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("no command uses pandas", name=name)


def main() -> None:
    """Run the command. If only the SDK is installed, print how to install the command line."""
    if any(find_spec(module) is None for module in _NEEDED):
        from jetstream_protocol.extras import install_command

        print(
            f"jetstream needs the cli extra; install it with:\n  {install_command('cli')}",
            file=sys.stderr,
        )
        raise SystemExit(1)
    sys.meta_path.insert(0, _WithoutPandas())
    from jetstream_client.cli.main import main as run

    run()
