"""Where a reader over HTTP begins, as people write it."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.types import WallUs
from jetstream_server.serving.http.start_offsets import ALL, Place

NOW_US = WallUs(1_800_000_000_000_000)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", Place(last=ALL)),
        ("latest", Place()),
        ("0", Place(offset=0)),
        ("-10", Place(last=10)),
        ("1h", Place(timestamp_us=NOW_US - 3_600_000_000)),
        ("1h30m", Place(timestamp_us=NOW_US - 5_400_000_000)),
        ("0.5s", Place(timestamp_us=NOW_US - 500_000)),
        ("1970-01-01T00:00:01Z", Place(timestamp_us=1_000_000)),
    ],
)
def test_a_place_is_said_as_on_the_command_line(text: str, place: Place) -> None:
    assert Place.of("from", text, NOW_US) == place


@pytest.mark.parametrize(
    "text", ["", "-1h", "1e309", "nan", "1 h", "9" * 400 + "s", "99999999999w", "24:00"]
)
def test_what_is_no_place_is_refused_with_what_to_say(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"invalid from=.*1h"):
        Place.of("from", text, NOW_US)
