"""What the lake and backups say alike of a bucket: its name, and what its server said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from jetstream_protocol.errors import InvalidRequestError

_REASON_LENGTH_MAX: Final = 300
"""Of what a server says: some send whole pages."""


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Of `s3://bucket/prefix`: the bucket, and what all names begin with: "", or it ends at a
    slash. Raises InvalidRequestError."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")  # Brackets without an end.
    prefix = parts.path.strip("/")
    is_bucket = parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc
    # A part of it would be left out in silence.
    is_cut = parts.query or parts.fragment or not url.isprintable()
    # No object may have such a name.
    is_odd = prefix and {"", ".", ".."} & set(prefix.split("/"))
    if not is_bucket or is_cut or is_odd:
        raise InvalidRequestError("a bucket is named as s3://bucket or s3://bucket/prefix")
    return parts.netloc, f"{prefix}/" if prefix else ""


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The credentials in it, as all programs that use buckets find them there."""
    names = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
    return tuple(environment.get(name, "") for name in names)


def shown(error: Exception, secrets: tuple[str, ...]) -> str:
    """What the store said, in one line, without these."""
    text = " ".join(str(error).partition("\n\nDebug")[0].split())
    for each in filter(None, secrets):
        text = text.replace(each, "…")
    return text[:_REASON_LENGTH_MAX]
