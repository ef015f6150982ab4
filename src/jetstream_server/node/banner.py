"""The text that `jetstream-server --dev` shows on a terminal: addresses, and commands to try."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DEFAULT_SERVER = "127.0.0.1:9292"
"""The address that clients use by default."""


def banner(state: str, grpc: str, http: str, nats: Sequence[str], folder: Path) -> str:
    """The banner. state: "ready", or why not. grpc: its advertised address. http, nats: URLs."""
    elsewhere = "" if grpc == DEFAULT_SERVER else f"  export JETSTREAM_SERVERS={grpc}\n"
    return f"""
Jetstream is {state}.

  clients  {grpc}
  NATS     {", ".join(nats)}
  metrics  {http}/metrics
  data     {folder.absolute()}

In another terminal:

{elsewhere}  jetstream stream create orders --subject 'orders.>'
  jetstream publish orders.eu hello
  jetstream fetch orders --offset earliest --follow

Ctrl-C stops it; what it keeps is there at the next start. --log-level info shows what it does.
"""
