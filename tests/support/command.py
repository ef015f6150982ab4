"""The `jetstream` command within this process: many times quicker than a process of its own.

What only a process has (signals, pipes, terminals, closed streams) is tested with one, by
tests/integration/test_command_line.py.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from jetstream_client.cli.main import run

PATIENCE = ("--timeout", "20")
"""Of commands that name none: a server may stand still."""


def jetstream(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Its exit code and what it prints. Standard input is empty."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n", write_through=True)
        for _ in range(2)
    )
    with open(os.devnull) as nothing, pytest.MonkeyPatch.context() as patch:
        for name, stream in (("stdin", nothing), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        code = run([*PATIENCE, *arguments])
    said, complained = (
        stream.buffer.getvalue().decode(errors="surrogateescape") for stream in (out, err)
    )
    return subprocess.CompletedProcess(arguments, code, said, complained)
