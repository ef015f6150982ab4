"""The fuzz command, for some seconds: it passes, and it finds planted failures."""

from __future__ import annotations

import subprocess
import sys

import pytest


def fuzz(port: str, seconds: float, *options: str) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--port", port, "--seed", "ci", *options]
    found = subprocess.run(
        [*command, "--minutes", str(seconds / 60)], capture_output=True, text=True, timeout=110
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]


@pytest.mark.parametrize("port", ["data", "http", "nats", "raft"])
def test_hostile_bytes_have_no_effect(port: str) -> None:
    fuzz(port, 4)


def test_hostile_calls_have_no_effect() -> None:
    fuzz("grpc", 8)


@pytest.mark.parametrize("who", [("--strangers", "--tls"), ("--known",)], ids=" ".join)
def test_where_security_is_on_hostile_bytes_change_nothing(who: tuple[str, ...]) -> None:
    """`--secured` is the whole of it: each with TLS and without."""
    fuzz("all", 3, *who)
