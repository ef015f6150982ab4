"""How a bucket is named, and what people are shown of what its server says."""

from __future__ import annotations

import pytest

from jetstream_protocol.buckets import bucket_and_prefix, secrets_of, shown
from jetstream_protocol.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://b", ("b", "")),
        ("s3://b/", ("b", "")),
        ("s3://b/one", ("b", "one/")),
        ("s3://b//one/two//", ("b", "one/two/")),
    ],
)
def test_a_url_names_a_bucket_and_what_names_begin_with(url: str, found: tuple[str, str]) -> None:
    assert bucket_and_prefix(url) == found


@pytest.mark.parametrize(
    "url",
    [
        "", "b", "file:///b", "s3://", "s3://a:b@c", "s3://b?x", "s3://[", "s3://b/x#y",
        "s3://b/x//y", "s3://b/x/../y", "s3://b/.", "s3://b/x\ty",
    ],
)  # fmt: skip
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="named as s3://bucket"):
        bucket_and_prefix(url)


def test_no_credential_is_shown() -> None:
    secrets = secrets_of({"AWS_SECRET_ACCESS_KEY": "one", "AWS_SESSION_TOKEN": "two", "X": "no"})
    assert shown(OSError("no: two one\n mine\n\nDebug x"), ("mine", *secrets)) == "no: … … …"
    assert len(shown(OSError("x" * 1000), secrets)) == 300
