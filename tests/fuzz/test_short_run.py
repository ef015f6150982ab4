"""The fuzz command, for some seconds: it passes, and it finds planted failures."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.fork_server import fork_server


def fuzz(port: str, seconds: float, *options: str, **environment: str) -> str:
    """What the campaign has said. Forked; it starts its servers."""
    command = [sys.executable, "-m", "tests.fuzz", "--port", port, "--seed", "ci", *options]
    found = fork_server.run(
        [*command, "--minutes", str(seconds / 60)],
        environment={**os.environ, **environment},
        timeout=290,
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    return found.stdout


def test_hostile_bytes_and_calls_on_any_port_have_no_effect() -> None:
    fuzz("all", 4)


def test_hostile_messages_have_no_effect_on_plain_python() -> None:
    assert '"form": "python"' in fuzz("nats", 1, JETSTREAM_PURE="1")


@pytest.mark.parametrize("who", [("--strangers", "--tls"), ("--known",)], ids=" ".join)
def test_where_security_is_on_hostile_bytes_change_nothing(who: tuple[str, ...]) -> None:
    """`--secured` is the whole of it: each with TLS and without."""
    fuzz("all", 1, *who)
