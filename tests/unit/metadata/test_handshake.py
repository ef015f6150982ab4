import struct
from dataclasses import replace

import pytest

from jetstream_protocol.errors import InvalidRequestError, UnauthenticatedError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import handshake
from jetstream_server.metadata.raft.handshake import Answer, Capability, Hello, Purpose, Status

CHALLENGE = b"c" * 32
HELLO = Hello(Purpose.LINK, NodeId(1), NodeId(2), b"i" * 16, bytes(16), b"n" * 32)
ANSWER = Answer(Status.WELCOME, NodeId(2), b"j" * 16)


def test_each_side_understands_the_other() -> None:
    assert handshake.decode_challenge(handshake.encode_challenge(CHALLENGE)) == CHALLENGE
    data = handshake.encode_hello(HELLO, b"secret", CHALLENGE)
    assert len(data) == handshake.HELLO_BYTES
    assert handshake.decode_hello(data, b"secret", CHALLENGE) == HELLO
    data = handshake.encode_answer(ANSWER, b"secret", HELLO.nonce, CHALLENGE)
    assert len(data) == handshake.ANSWER_BYTES
    assert handshake.decode_answer(data, b"secret", HELLO.nonce, CHALLENGE) == ANSWER


def test_another_credential_challenge_or_any_changed_byte_is_refused() -> None:
    data = handshake.encode_hello(HELLO, b"secret", CHALLENGE)
    for secret, challenge in ((b"other", CHALLENGE), (b"", CHALLENGE), (b"secret", b"d" * 32)):
        with pytest.raises(UnauthenticatedError):
            handshake.decode_hello(data, secret, challenge)
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises((UnauthenticatedError, InvalidRequestError)):
            handshake.decode_hello(bytes(changed), b"secret", CHALLENGE)


def test_earlier_releases_read_what_they_know_and_say_that_they_know_no_more() -> None:
    """Their fields, with three bytes that they send as zero and do not read."""
    hello = struct.Struct("<8sB3xII16s16s32s")
    mine = handshake.encode_hello(HELLO, b"secret", CHALLENGE)
    assert hello.unpack(mine[: hello.size])[1:4] == (Purpose.LINK, 1, 2)
    body = hello.pack(handshake.MAGIC, Purpose.LINK, 1, 2, b"i" * 16, bytes(16), b"n" * 32)
    theirs = body + handshake._mac(b"secret", b"hello", CHALLENGE, body)
    decoded = handshake.decode_hello(theirs, b"secret", CHALLENGE)
    assert decoded == replace(HELLO, capabilities=Capability.NONE)

    answer = struct.Struct("<8sB3xI16s")
    mine = handshake.encode_answer(ANSWER, b"secret", HELLO.nonce, CHALLENGE)
    assert answer.unpack(mine[: answer.size])[1:3] == (Status.WELCOME, 2)
    body = answer.pack(handshake.MAGIC, Status.WELCOME, 2, b"j" * 16)
    theirs = body + handshake._mac(b"secret", b"answer", HELLO.nonce + CHALLENGE, body)
    said = handshake.decode_answer(theirs, b"secret", HELLO.nonce, CHALLENGE)
    assert said == replace(ANSWER, capabilities=Capability.NONE)


def test_capabilities_of_later_releases_are_no_error() -> None:
    later = replace(HELLO, capabilities=Capability(0x81))
    data = handshake.encode_hello(later, b"secret", CHALLENGE)
    assert Capability.PRE_VOTE in handshake.decode_hello(data, b"secret", CHALLENGE).capabilities


def test_an_answer_belongs_to_its_question() -> None:
    data = handshake.encode_answer(ANSWER, b"secret", HELLO.nonce, CHALLENGE)
    for secret, nonce in ((b"other", HELLO.nonce), (b"secret", b"m" * 32)):
        with pytest.raises(UnauthenticatedError):
            handshake.decode_answer(data, secret, nonce, CHALLENGE)


def test_a_refused_credential_is_said_in_the_clear() -> None:
    answer = Answer(Status.BAD_CREDENTIAL, NodeId(2), bytes(16))
    data = handshake.encode_answer(answer, b"their secret", b"", CHALLENGE)
    with pytest.raises(UnauthenticatedError, match="refuses this node's cluster credential"):
        handshake.decode_answer(data, b"our secret", HELLO.nonce, CHALLENGE)


def test_frames_open_once_in_order_and_in_their_direction() -> None:
    send, _ = handshake.sealers(b"secret", CHALLENGE, HELLO.nonce, dialled=True)
    _, receive = handshake.sealers(b"secret", CHALLENGE, HELLO.nonce, dialled=False)
    frames = [send.seal(payload) for payload in (b"one", b"", b"three")]
    for frame in frames:
        length = handshake.frame_length(frame)
        tag, payload = frame[4:20], frame[20:]
        assert len(payload) == length
        receive.check(tag, payload)
    with pytest.raises(UnauthenticatedError):
        receive.check(frames[0][4:20], frames[0][20:])
    own = handshake.sealers(b"secret", CHALLENGE, HELLO.nonce, dialled=True)[1]
    with pytest.raises(UnauthenticatedError):
        own.check(frames[0][4:20], frames[0][20:])


def test_a_frame_longer_than_any_message_is_refused_by_its_head() -> None:
    with pytest.raises(InvalidRequestError, match="at most"):
        handshake.frame_length(b"\xff\xff\xff\x7f" + bytes(16))


def test_an_unknown_cluster_id_has_a_digest_that_fits_all() -> None:
    assert handshake.cluster_digest("") == handshake.UNKNOWN_CLUSTER
    assert handshake.cluster_digest("a") != handshake.cluster_digest("b")
