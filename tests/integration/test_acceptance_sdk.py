"""What a program that uses the SDK sees: errors to be told apart by their class.

Its types are tests/typed_sdk.py's.
"""

from __future__ import annotations

import jetstream_client
from jetstream_client import JetstreamError


def test_every_error_of_the_package_has_one_root_a_code_and_says_whether_to_try_again() -> None:
    errors = [
        getattr(jetstream_client, name)
        for name in jetstream_client.__all__
        if name.endswith("Error") and name != JetstreamError.__name__
    ]
    assert len(errors) > 10
    for error in errors:
        assert issubclass(error, JetstreamError)
        assert isinstance(error.retriable, bool)
    codes = [error("why").code for error in errors]
    assert len(set(codes)) == len(codes)
