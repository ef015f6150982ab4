"""A whole server that takes a snapshot of its metadata every few dozen entries, not after 20,000.

python -m tests.support.snapshotting_server --config … --node-id N …
"""

from __future__ import annotations

import sys
from functools import partial

ENTRIES = 40


def command() -> tuple[str, ...]:
    """What to run in place of the server."""
    return sys.executable, "-m", "tests.support.snapshotting_server"


def main() -> None:
    from jetstream_server.node import build
    from jetstream_server.node.cli import main as serve

    setattr(build, "MemberConfig", partial(build.MemberConfig, compact_after_entries=ENTRIES))  # noqa: B010
    serve()


if __name__ == "__main__":
    main()
