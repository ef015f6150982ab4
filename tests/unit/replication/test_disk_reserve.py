"""When a node looks at its free space again."""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from jetstream_server.replication.drivers.disk_reserve import (
    CHECK_SECONDS_MAX,
    CHECK_SECONDS_MIN,
    FASTEST_BYTES_PER_SECOND,
    check_space,
    seconds_to_check,
)

MIB = 1 << 20


@given(st.integers(0, 1 << 40), st.integers(64 * MIB, 1 << 34))
def test_the_fastest_disk_uses_at_most_half_of_the_reserve_between_two_checks(
    free: int, reserve: int
) -> None:
    seconds = seconds_to_check(free, reserve)
    assert CHECK_SECONDS_MIN <= seconds <= CHECK_SECONDS_MAX
    if free >= reserve:
        assert free - seconds * FASTEST_BYTES_PER_SECOND >= reserve / 2


def test_it_looks_once_a_second_where_nothing_is_appended_or_much_is_free(tmp_path: Path) -> None:
    assert seconds_to_check(100 << 30, 128 * MIB) == 1.0
    assert seconds_to_check(0, 0) == CHECK_SECONDS_MIN
    free = shutil.disk_usage(tmp_path).free
    full, seconds = check_space(tmp_path, 2 * free)
    assert "below the reserve of" in full
    assert seconds == 1.0
    assert check_space(tmp_path, 0) == ("", 1.0)
    unknown, seconds = check_space(tmp_path / "missing", 0)
    assert "is unknown" in unknown
    assert seconds == 1.0
