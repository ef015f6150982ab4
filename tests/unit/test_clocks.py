"""The times of different clocks cannot be mixed up: mypy refuses it."""

from __future__ import annotations

import re
from pathlib import Path

import mypy.api
import pytest

TREE = Path(__file__).resolve().parent.parent.parent
MIXED_UP = """
from jetstream_protocol.types import BootUs, MonotonicUs, WallUs
from jetstream_server.clocks import Clocks, boot_clock, monotonic_clock, wall_clock

def wall(at_us: WallUs) -> None: ...
def monotonic(at_us: MonotonicUs) -> None: ...
def boot(at_us: BootUs) -> None: ...

wall(wall_clock())
monotonic(monotonic_clock())
boot(boot_clock())
monotonic(MonotonicUs(monotonic_clock() + 1))
wall(monotonic_clock())  # wrong
wall(boot_clock())  # wrong
monotonic(wall_clock())  # wrong
monotonic(boot_clock())  # wrong
boot(wall_clock())  # wrong
boot(monotonic_clock())  # wrong
wall(monotonic_clock() - 1)  # wrong
wall(0)  # wrong
Clocks(boot=monotonic_clock)  # wrong
"""


def test_a_time_of_another_clock_is_a_type_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "mixed_up.py"
    file.write_text(MIXED_UP)
    monkeypatch.chdir(TREE)
    said, complaints, _ = mypy.api.run(["--cache-dir=/dev/null", str(file)])
    assert complaints == ""
    refused = [int(line) for line in re.findall(r":(\d+): error: .*\[arg-type\]", said)]
    lines = MIXED_UP.splitlines()
    assert refused == [number for number, line in enumerate(lines, 1) if "# wrong" in line], said
    assert said.count("error:") == len(refused), said
