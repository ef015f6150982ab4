"""The `jetstream` command: streams, publishing, fetching, and log files offline.

Output is for people, unless `--json` asks for one object (or one per line). Errors are one line on
stderr. Exit codes: see `exits`.
"""

from jetstream_client.cli.main import main

__all__ = ["main"]
