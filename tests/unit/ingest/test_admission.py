"""What is stored of a delivery: the short cuts and the long way say the same."""

from __future__ import annotations

from jetstream_protocol.errors import InvalidRequestError, WrongStreamError
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.stream.admission import admit


def block(**fields: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return f"NATS/1.0\r\n{lines}\r\n".encode()


def delivery(*messages: tuple[bytes, bytes, bytes]) -> Delivery:
    """Messages as (subject, value, header block), with replies r0, r1, …"""
    return Delivery(
        1,
        [subject for subject, _, _ in messages],
        [b"r%d" % index for index in range(len(messages))],
        [value for _, value, _ in messages],
        [headers for _, _, headers in messages],
    )


def test_plain_messages_pass_through_as_they_came() -> None:
    given = Delivery(1, [b"a", b"b"], [b"", b"r"], [b"1", b"2"], None)
    admitted = admit(given, "s")
    assert (admitted.values, admitted.subjects) == ([b"1", b"2"], [b"a", b"b"])
    assert (admitted.replies, admitted.keys, admitted.refused) == ([b"", b"r"], None, [])


def test_keys_are_the_same_by_the_short_cut_and_the_long_way() -> None:
    keyed = (b"a", b"1", block(Jetstream_Key="k"))
    assert admit(delivery(keyed, keyed), "s").keys == [b"k", b"k"]
    mixed = admit(delivery(keyed, (b"a", b"2", block(X="y"))), "s")
    assert mixed.keys == [b"k", None]
    assert mixed.header_blocks == [block(Jetstream_Key="k"), block(X="y")]


def test_a_subject_that_is_not_utf8_is_refused_and_its_neighbours_keep_their_headers() -> None:
    admitted = admit(
        delivery(
            (b"a.\xff", b"bad", block(Jetstream_Key="lost")),
            (b"a.b", b"good", block(Jetstream_Key="k", Jetstream_Ack="none")),
        ),
        "s",
    )
    assert (admitted.values, admitted.subjects, admitted.keys) == ([b"good"], [b"a.b"], [b"k"])
    assert admitted.replies == [b""]
    assert [(reply, type(error)) for reply, error, _ in admitted.refused] == [
        (b"r0", InvalidRequestError)
    ]


def test_one_refused_message_leaves_the_others_where_they_belong() -> None:
    admitted = admit(
        delivery(
            (b"a", b"1", block(Jetstream_Ack="leader")),
            (b"b", b"2", block(Nats_Expected_Stream="other")),
            (b"c", b"3", block(Jetstream_Ack="leader")),
            (b"d", b"", block(Jetstream_Tombstone="true")),
        ),
        "s",
    )
    assert admitted.values == [b"1", b"3", None]
    assert admitted.early == {0: b"r0", 1: b"r2"}
    assert admitted.replies == [b"", b"", b"r3"]
    assert [(reply, type(error)) for reply, error, _ in admitted.refused] == [
        (b"r1", WrongStreamError)
    ]


def test_a_part_keeps_early_answers_with_their_messages() -> None:
    admitted = admit(
        delivery(
            (b"a", b"1", block(Jetstream_Ack="leader")),
            (b"b", b"2", block(Jetstream_Ack="leader", Jetstream_Key="k")),
        ),
        "s",
    )
    part = admitted.only([1])
    assert (part.values, part.early, part.keys) == ([b"2"], {0: b"r1"}, [b"k"])
