"""The advice that ends an error."""

from __future__ import annotations

import pytest

from jetstream_client import (
    JetstreamError,
    NotEnoughReplicasError,
    TooManyRequestsError,
    UnavailableError,
)
from pyspark_jetstream.errors import explained


def explanation(error: JetstreamError) -> str:
    with pytest.raises(type(error)) as raised, explained("a:9292"):
        raise error
    return str(raised.value)


def test_servers_are_to_be_checked_only_if_none_answered() -> None:
    said = explanation(UnavailableError("node 2 does not know yet where its records end"))
    assert "records end; if no node answered, check that option servers (a:9292) names" in said


@pytest.mark.parametrize("cls", [NotEnoughReplicasError, TooManyRequestsError])
def test_what_only_a_node_answers_brings_no_advice_on_servers(cls: type[JetstreamError]) -> None:
    assert "servers" not in explanation(cls("refused"))
