"""The beginning of `jetstream-server`: it imports nothing that only the server extra installs."""

from __future__ import annotations

import sys
from importlib.util import find_spec

_NEEDED = (
    "aiohttp",
    "cryptography",
    "grpc_health",
    "pydantic_settings",
    "structlog",
    "typer",
    "uvloop",
    "yaml",
)


def main() -> None:
    """Run the command. If only the client is installed, print how to install the server."""
    if any(find_spec(module) is None for module in _NEEDED):
        from jetstream_protocol.extras import install_command

        print(
            "jetstream-server needs the server extra; install it with:\n"
            f"  {install_command('server')}",
            file=sys.stderr,
        )
        raise SystemExit(1)
    from jetstream_server.node.cli import main as run

    run()
