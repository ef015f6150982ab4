"""What we answer otherwise than a nats-server with JetStream, and why. Any other difference is a
fault, and so is one that is not there any more.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tests.support.differential.side import SILENCE, flat

ABSENT: Final = "absent"
DONE: Final = "done"


class Difference(NamedTuple):
    """theirs, ours: the value at a path of the answers; or how the answers end: `done`, the number
    of an error, a status, `silence`."""

    path: str
    theirs: Any
    ours: Any


WORDED: Final = {
    10012: "which field may not be altered",
    10003: "which part of the request is wrong",
    10025: "the words of another parser of JSON",
    10036: "what is not supported",
    10052: "why we do not have it, or that a subject is not one",
    10057: "that single messages are never deleted",
    10058: "what is different",
    10060: "which stream was expected, and which it is",
    10074: "how many nodes there are",
    10095: "the words of another parser of numbers",
}
"""Errors whose text is ours. Clients compare the number."""


def outcome(answers: list[Any]) -> str:
    """How a step ends."""
    last = answers[-1] if answers else DONE
    if last == SILENCE:
        return SILENCE
    if isinstance(last, dict):
        if isinstance(last.get("error"), dict):
            return f"{last['error']['code']}/{last['error']['err_code']}"
        status = (last.get("headers") or {}).get("Status")
        if status:
            return str(status).partition(" - ")[0]  # "400 Bad Request - …": the words are ours.
    return DONE


def differences(theirs: list[Any], ours: list[Any]) -> list[Difference]:
    """Of the answers to one step."""
    if outcome(theirs) != outcome(ours):
        return [Difference("", outcome(theirs), outcome(ours))]
    left, right = (flat(_without_words(each)) for each in (theirs, ours))
    return [
        Difference(path, left.get(path, ABSENT), right.get(path, ABSENT))
        for path in sorted(left.keys() | right.keys())
        if left.get(path, ABSENT) != right.get(path, ABSENT)
    ]


def _without_words(answers: list[Any]) -> list[Any]:
    found = []
    for each in answers:
        if outcome([each]) == "400 Bad Request":
            each = "400 Bad Request"
        error = each.get("error") if isinstance(each, dict) else None
        if isinstance(error, dict) and error.get("err_code") in WORDED:
            each = {**each, "error": {**error, "description": "ours"}}
        found.append(each)
    return found


_LEVEL = [Difference("[0].api.level", 5, 1)]
_STEPS_DOWN = [Difference("", "503/10010", "503/10036")]
_REFUSED = [Difference("", DONE, "503/10036")]

EXPECTED: Final[dict[str, tuple[str, list[Difference]]]] = {
    "info of the account": ("we serve the level of nats-server 2.11", _LEVEL),
    "info with a body": ("the same", _LEVEL),
    "info with an empty object": ("the same", _LEVEL),
    "create again": (
        "said only where a stream was created",
        [Difference("[0].did_create", True, ABSENT)],
    ),
    "create with a bad retention": (
        "the same as for those that we do not have",
        [Difference("", "400/10025", "500/10052")],
    ),
    "publish after a wrong last id": (
        "we do not have this condition",
        [Difference("", "400/10070", "400/20001")],
    ),
    "info of a used stream": (
        "subjects are counted where there is an index of them",
        [Difference("[0].state.num_subjects", 5, ABSENT)],
    ),
    "how many consumers": (
        "the same",
        [Difference("[0].state.num_subjects", 5, ABSENT)],
    ),
    "get by a later time": (
        "nats-server answers by the first message, which is older",
        [Difference("", DONE, "404/10037")],
    ),
    "a batch by a later time": ("the same", [Difference("", "204 EOB", "404 Message Not Found")]),
    "direct by a later time": ("the same", [Difference("", DONE, "404 Message Not Found")]),
    "a consumer of another name": (
        "what contradicts itself is refused",
        [Difference("", DONE, "400/10017")],
    ),
    "a consumer without a config": (
        "nothing is created by accident",
        [Difference("", DONE, "400/10025")],
    ),
    "pull with a group": (
        "we have no priorities, and say so",
        [Difference("", "408 Request Timeout", "400 Bad Request")],
    ),
    "pull after a late refusal": (
        "a refusal of an earlier delivery takes the message from nobody",
        [Difference("", DONE, "404 No Messages")],
    ),
    "delete a consumer with null": (
        "null is no body: a library sends it elsewhere",
        [Difference("", "400/10038", DONE)],
    ),
    "the state of a bucket": (
        "replaced records are removed later",
        [Difference("[0].state.first_seq", 6, 1)],
    ),
    "the keys of a bucket": ("the same", [Difference("[0].state.first_seq", 6, 1)]),
    "some keys of a bucket": ("the same", [Difference("[0].state.first_seq", 6, 1)]),
    "a snapshot": ("there is a command for that", _REFUSED),
    "reset": ("not served", _REFUSED),
    "remove a peer": ("nats-server is alone here, and we have a command", _STEPS_DOWN),
    "step down": ("the same", _STEPS_DOWN),
    "a consumer's leader steps down": ("its stream's leader is its own", _STEPS_DOWN),
    "unpin": ("we have no priorities", [Difference("", "400/10160", "503/10036")]),
    "an unknown verb": (
        "every request is answered at once",
        [Difference("", SILENCE, "400/10003")],
    ),
    "no verb": ("every request is answered at once", [Difference("", "503", "400/10003")]),
}
"""Of each step that is answered otherwise: the reason, and what is different."""
