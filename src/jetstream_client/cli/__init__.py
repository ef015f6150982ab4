"""The `jetstream` command: streams, publishing, fetching, and log files offline.

Output is for people, unless `--json` asks for one object (or one per line). Errors are one line on
stderr, but for those of queries. Exit codes: see `exits`. What it needs beside the SDK is the extra
`cli`.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = ("rich", "typer")


def main() -> None:
    """Entry point. If only the SDK is installed, says how to install the command line."""
    if any(find_spec(module) is None for module in _NEEDED):
        print(
            "jetstream needs the cli extra; install it with:\n  pip install 'jetstream-log[cli]'",
            file=sys.stderr,
        )
        raise SystemExit(1)
    from jetstream_client.cli.main import main as run

    run()


__all__ = ["main"]
