"""One case of packets.py; the command runs all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.namespaces import missing

CASE = "leader from everybody"


@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(missing()), reason=missing() or "there are namespaces")
def test_where_packets_are_lost_publishers_are_served_and_nothing_acknowledged_is_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.packets", "--only", CASE],
        capture_output=True,
        text=True,
        timeout=580,
    )
    print(done.stdout)
    assert f"{CASE}: 1 rounds, 0 failed" in done.stdout, done
