"""The error tree and its table of spellings agree, and every error survives the wire."""

from __future__ import annotations

import pytest

from jetstream_protocol import errors
from jetstream_protocol.errors import CODES, JetstreamError, UnknownOutcomeError, from_proto
from jetstream_protocol.generated import common_pb2

PUBLIC: list[type[JetstreamError]] = [
    cls
    for name, cls in sorted(vars(errors).items())
    if isinstance(cls, type) and issubclass(cls, JetstreamError) and not name.startswith("_")
    if cls is not JetstreamError
]


def test_every_error_has_a_spelling_on_each_wire() -> None:
    assert set(CODES) == set(PUBLIC)


def test_no_two_errors_share_a_code() -> None:
    assert len({spelling.code for spelling in CODES.values()}) == len(CODES)
    assert len({spelling.nats_err_code for spelling in CODES.values()}) == len(CODES)


def test_the_tree_is_drawn_in_the_docstring() -> None:
    drawing = errors.__doc__ or ""
    for cls in PUBLIC:
        line = next(line for line in drawing.splitlines() if f" {cls.__name__} " in f"{line} ")
        marked = "(r)" in line
        assert marked == cls.retriable or any(
            parent.retriable for parent in cls.__mro__[1:-1] if issubclass(parent, JetstreamError)
        ), line


@pytest.mark.parametrize("cls", PUBLIC, ids=lambda cls: cls.__name__)
def test_an_error_arrives_as_its_own_class(cls: type[JetstreamError]) -> None:
    sent = cls("what to do")
    received = from_proto(common_pb2.Error.FromString(sent.to_proto().SerializeToString()))
    assert type(received) is cls
    assert (received.message, received.code, received.retriable) == (
        sent.message,
        sent.code,
        sent.retriable,
    )


def test_a_private_subclass_speaks_as_what_it_specialises() -> None:
    class NobodyHomeError(errors.UnavailableError):
        pass

    received = from_proto(NobodyHomeError("later").to_proto())
    assert type(received) is errors.UnavailableError
    assert received.retriable


def test_the_readable_range_travels_with_offset_out_of_range() -> None:
    received = from_proto(errors.OffsetOutOfRangeError("gone", 5, 9).to_proto())
    assert isinstance(received, errors.OffsetOutOfRangeError)
    assert (received.log_start_offset, received.high_watermark) == (5, 9)


def test_the_point_of_divergence_travels_with_diverged() -> None:
    received = from_proto(errors.DivergedError("other history", 3, 40).to_proto())
    assert isinstance(received, errors.DivergedError)
    assert (received.epoch, received.end_offset) == (3, 40)


def test_the_candidates_travel_with_ambiguous_stream() -> None:
    received = from_proto(errors.AmbiguousStreamError("which?", ("a@x", "a@y")).to_proto())
    assert isinstance(received, errors.AmbiguousStreamError)
    assert received.candidates == ("a@x", "a@y")


@pytest.mark.parametrize("cls", [errors.NotLeaderError, errors.NotReplicaError])
def test_the_node_to_ask_instead_travels_with_a_redirect(cls: type[errors.NotLeaderError]) -> None:
    sent = cls("ask node 2", common_pb2.NodeAddress(node_id=2, grpc="b:9292"))
    received = from_proto(sent.to_proto())
    assert isinstance(received, cls)
    assert received.redirect is not None
    assert received.redirect.grpc == "b:9292"


def test_a_code_of_newer_software_becomes_an_internal_error_that_names_it() -> None:
    received = from_proto(common_pb2.Error(code="brand_new", message="hm"))
    assert type(received) is errors.InternalError
    assert "brand_new" in str(received)


def test_a_message_that_may_be_stored_does_not_look_as_if_nobody_had_listened() -> None:
    """NATS's code for that is 503, and some clients look at nothing else."""
    unknown = [kind for kind in CODES if issubclass(kind, UnknownOutcomeError)]
    assert len(unknown) > 1
    assert {CODES[kind].nats_code for kind in unknown} == {504}
