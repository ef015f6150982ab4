import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.logfiles.metadata_records import Entry
from jetstream_server.metadata.raft.messages import (
    COMMAND_BYTES_MAX,
    NO_OP,
    REGULAR,
    Message,
    decode,
    encode,
)

ENTRIES = [Entry(bytes([NO_OP]), 8, 2), Entry(bytes([REGULAR]) + b"text", 9, 3)]
MESSAGES: list[Message] = [
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 4,
        "entries": ENTRIES,
        "prevLogIdx": 7,
        "prevLogTerm": 2,
    },
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 0,
        "serialized": (b"piece", True, False),
    },
    {"type": "request_vote", "term": 3, "last_log_index": 9, "last_log_term": 2},
    {"type": "response_vote", "term": 3},
    {"type": "next_node_idx", "term": 3, "next_node_idx": 9, "reset": True, "success": False},
    {"type": "apply_command", "command": bytes([REGULAR]) + b"text", "request_id": 5},
    {"type": "apply_command_response", "request_id": 5, "log_idx": 9, "log_term": 3},
    {"type": "apply_command_response", "request_id": 5, "error": 4},
    {"type": "timeout_now", "term": 3},
    {"type": "request_pre_vote", "term": 4, "last_log_index": 9, "last_log_term": 2},
    {"type": "pre_vote", "term": 3, "asked": 4, "granted": True},
    {
        "type": "request_vote",
        "term": 3,
        "last_log_index": 9,
        "last_log_term": 2,
        "takes_over": True,
    },
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["type"]))
def test_a_message_is_the_same_after_the_wire(message: Message) -> None:
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["type"]))
def test_a_message_cut_short_or_longer_is_refused_or_another_valid_one(message: Message) -> None:
    data = encode(message)
    for cut in range(len(data)):
        try:
            shorter = decode(data[:cut])
        except InvalidRequestError:
            continue
        # Only a trailing text of any length can be cut and still be one.
        assert message["type"] == "apply_command" or "serialized" in message
        assert shorter["type"] == message["type"]


def test_a_commit_index_never_travels_beside_a_piece_of_a_snapshot() -> None:
    message = {
        "type": "append_entries",
        "term": 3,
        "commit_index": 77,
        "serialized": (b"piece", False, True),
    }
    assert decode(encode(message))["commit_index"] == 0


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x0a", b"\xff" * 100, b"\x80\x04K\x01."])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode(data)


@pytest.mark.parametrize(
    "command", [b"", b"\x02membership", b"\x03version", b"\xff", bytes(COMMAND_BYTES_MAX + 1)]
)
def test_other_kinds_of_commands_are_refused(command: bytes) -> None:
    """pysyncobj would unpickle the text of a membership or version command."""
    append = {**MESSAGES[0], "entries": [Entry(command, 8, 2)]}
    forward = {**MESSAGES[5], "command": command}
    for message in (append, forward):
        with pytest.raises(InvalidRequestError):
            decode(encode(message))


@pytest.mark.parametrize("terms", [(1, 2), (3, 2), (2, 4)])
def test_entries_with_impossible_terms_are_refused(terms: tuple[int, int]) -> None:
    entries = [Entry(bytes([NO_OP]), 8 + i, term) for i, term in enumerate(terms)]
    with pytest.raises(InvalidRequestError):
        decode(encode({**MESSAGES[0], "entries": entries}))
