"""As differences.py, for the steps of odd_steps.py: mostly how a step ends."""

from __future__ import annotations

from typing import Final

from tests.support.differential.differences import ABSENT, DONE, Difference

_ENDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "fields that we do not know are ignored, as older nats-servers do": {
        "an unknown field": ("400/10025", DONE),
        "an unknown field of a consumer": ("400/10025", DONE),
        "names with an unknown field": ("400/10025", DONE),
        "get an unknown field": ("400/10025", DONE),
        "purge an unknown field": ("400/10025", DONE),
    },
    "a stream has one subject": {
        "several subjects": (DONE, "500/10052"),
        "update its subject to several": (DONE, "500/10052"),
    },
    "we do not have it, and say so": {
        "a history of 65": (DONE, "500/10052"),
        "a mirror": (DONE, "500/10052"),
        "sources": (DONE, "500/10052"),
        "republished": (DONE, "500/10052"),
        "a transform": (DONE, "500/10052"),
        "placed": (DONE, "500/10052"),
        "workers": (DONE, "500/10052"),
        "interest": (DONE, "500/10052"),
        "a bucket with a history": (DONE, "500/10052"),
        "a bucket with a TTL": (DONE, "500/10052"),
        "info of deleted ones": (DONE, "500/10052"),
        "as it was": (DONE, "500/10052"),
        "priorities": (DONE, "500/10052"),
        "waiting many": (DONE, "400/10052"),
        "a rollup of a bucket": (DONE, "400/20001"),
        "purge a subject": (DONE, "500/10110"),
    },
    "the number for what we do not have, before it is looked at": {
        "an unknown storage": ("400/10025", "500/10052"),
        "an unknown compression": ("400/10025", "500/10052"),
        "an unknown replay": ("400/10025", "500/10052"),
        "a rate": ("400/10086", "500/10052"),
        "groups without a policy": ("400/10196", "500/10052"),
        "a rollup": ("500/10111", "400/20001"),
        "a rollup of all": ("500/10111", "400/20001"),
        "an unknown rollup": ("500/10111", "400/20001"),
        "a TTL": ("400/10166", "400/20001"),
    },
    "a number below none is a mistake, and no limit is absent or 0": {
        "names from below": (DONE, "400/10025"),
        "list from below": (DONE, "400/10025"),
        "consumers from below": (DONE, "400/10025"),
        "keys from below": (DONE, "400/10025"),
        "direct a batch below none": ("204 EOB", "408 Malformed Request"),
        "direct a batch of bytes below none": ("204 EOB", "408 Malformed Request"),
        "batch below none": (DONE, "400/10025"),
        "bytes below none": (DONE, "400/10025"),
        "replicas of a consumer below none": ("400/10133", "400/10025"),
        "pull a batch below none": ("408 Request Timeout", "400 Bad Request"),
        "pull bytes below none": ("408 Request Timeout", "400 Bad Request"),
    },
    "what is no subject is a mistake, not a subject that nobody has": {
        "names by a bad subject": (DONE, "400/10003"),
        "info by a bad filter": (DONE, "400/10003"),
        "get a last of a bad subject": ("404/10037", "400/10003"),
        "direct a last of a bad subject": ("404 Message Not Found", "408 Bad Request"),
        "direct many of a bad subject": ("404 No Results", "408 Bad Request"),
        "purge a bad subject": (DONE, "400/10003"),
        "a bad filter": ("500/10052", "400/10003"),
    },
    "what is no number is a mistake, not another sequence": {
        "a bad last": ("400/10071", "400/10003"),
        "a negative last": ("400/10071", "400/10003"),
        "a bad last of a subject": ("400/10071", "400/10003"),
        "a revision in text": ("400/10071", "400/10003"),
        "an empty last": (DONE, "400/10003"),
    },
    "what does not belong together is refused": {
        "get up to without many": (DONE, "400/10003"),
        "direct up to without many": (DONE, "408 Bad Request"),
        "a group to deliver to": (DONE, "400/10052"),
        "push to the server": (DONE, "400/10052"),
        "pull a group": ("408 Request Timeout", "400 Bad Request"),
        "pull a priority": ("408 Request Timeout", "400 Bad Request"),
    },
    "what comes to an end beyond the last message is answered": {
        "direct many before what will be": ("404 No Results", "204 EOB"),
        "direct many up to beyond": ("404 No Results", "204 EOB"),
    },
    "another check comes first": {
        "all subjects": ("500/10052", "400/10065"),
        "two bodies": ("400/10056", "400/10025"),
        "no UTF-8": ("400/10056", "400/10025"),
        "update without a body": ("500/10052", "400/10056"),
    },
    "names of our own streams, with % for dots": {
        "a path with a space": (DONE, "500/10052"),
    },
    "memory is accepted, and stored in files": {
        "update its storage": ("500/10052", DONE),
    },
    "one number for names that cannot be": {
        "a consumer with a dot": ("500/10052", "400/10103"),
        "a consumer with a space": ("500/10052", "400/10103"),
        "a long name": ("500/10012", "400/10102"),
    },
    "nothing is created by accident": {
        "a config of null": (DONE, "400/10025"),
    },
    "the subject says which stream it is": {
        "no stream's name": ("400/10056", DONE),
    },
    "how many copies a consumer has follows from its stream": {
        "many replicas": ("500/10074", DONE),
    },
    "replaced records are removed later": {
        "get an old revision": ("404 Message Not Found", DONE),
    },
    "null is no body: a library sends it elsewhere": {
        "delete with null": ("400/10038", DONE),
    },
}
"""By the reason: how a step ends there, and here."""

ODD: Final[dict[str, tuple[str, list[Difference]]]] = {
    f"odd: {name}": (why, [Difference("", *ends)])
    for why, steps in _ENDS.items()
    for name, ends in steps.items()
} | {
    "odd: ack wait of a nanosecond": (
        "durations are kept in µs, up to ten years",
        [Difference("[0].config.ack_wait", 1, 1000)],
    ),
    "odd: a huge wait": (
        "durations are kept in µs, up to ten years",
        [Difference("[0].config.ack_wait", 9223372036854775807, 315360000000000000)],
    ),
    "odd: pull a batch of none": (
        "a message is what is asked for at least",
        [Difference("[0].headers.Nats-Pending-Messages", "0", "1")],
    ),
    "odd: keys beyond the end": (
        "replaced records are removed later",
        [Difference("[0].state.first_seq", 5, 1)],
    ),
    "odd: keys of another": (
        "replaced records are removed later",
        [Difference("[0].state.first_seq", 5, 1)],
    ),
    "odd: info after the purge": (
        "subjects are counted where there is an index of them",
        [Difference("[0].state.num_subjects", 3, ABSENT)],
    ),
}
