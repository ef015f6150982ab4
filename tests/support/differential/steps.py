"""What is asked, in this order, of a server that has nothing yet. Each step has a name of its own,
by which the table of expected differences finds it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["ask", "many", "publish", "ack", "subscribe", "receive"]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that a client does, and waits for the answer.

    ask: a request with one answer. many: one with several, up to a status, or `count` of them.
    publish: a message, and its acknowledgement. ack: the answer to an acknowledgement of message
    `count` of those that the step `of` has brought. subscribe: to a subject, from now on. receive:
    `count` messages of that. pending: a consumer is asked again until it has heard of so many
    messages: nats-server acknowledges a message before its consumers know it."""

    name: str
    kind: Kind
    subject: str = ""
    payload: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    count: int = 1
    of: str = ""
    pending: int | None = None


SECOND = 10**9
PAST, FUTURE = "2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
STREAM = {"num_replicas": 1, "allow_direct": True, "deny_delete": True}
BUCKET = STREAM | {
    "name": "KV_settings",
    "subjects": ["$KV.settings.>"],
    "max_msgs_per_subject": 1,
    "discard": "new",
    "allow_rollup_hdrs": True,
}


def _bytes(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def ask(name: str, verb: str, body: object = b"", **headers: str) -> Step:
    named = tuple((key.replace("_", "-"), value) for key, value in headers.items())
    return Step(name, "ask", f"$JS.log.API.{verb}", _bytes(body), named)


def info(name: str, path: str, pending: int) -> Step:
    return Step(name, "ask", f"$JS.log.API.CONSUMER.INFO.{path}", pending=pending)


def many(name: str, verb: str, body: object, count: int = 1000) -> Step:
    return Step(name, "many", f"$JS.log.API.{verb}", _bytes(body), count=count)


def publish(name: str, subject: str, payload: bytes = b"", **headers: object) -> Step:
    named = tuple((key.replace("_", "-"), str(value)) for key, value in headers.items())
    return Step(name, "publish", subject, payload, named)


def ack(name: str, of: str, which: int, body: bytes = b"") -> Step:
    return Step(name, "ack", payload=body, count=which, of=of)


def create(name: str, path: str, action: str = "", /, **config: object) -> Step:
    """CONSUMER.CREATE. path: the stream, with the consumer's name."""
    stream, _, consumer = path.partition(".")
    if "durable_name" not in config:
        config = {"inactive_threshold": 3600 * SECOND, **config}
    fields: dict[str, Any] = {"stream_name": stream, "config": config}
    if consumer:
        config.setdefault("name", consumer.partition(".")[0])
    if action:
        fields["action"] = action
    return ask(name, f"CONSUMER.CREATE.{path}", fields)


def pull(name: str, path: str, body: object, count: int = 1000) -> Step:
    return many(name, f"CONSUMER.MSG.NEXT.{path}", body, count)


_STREAMS = [
    ask("info of the account", "INFO"),
    ask("info with a body", "INFO", {"a": 1}),
    ask("info with an empty object", "INFO", b"{}"),
    ask("a higher level", "INFO", Nats_Required_Api_Level="99"),
    ask("no names yet", "STREAM.NAMES"),
    ask("no list yet", "STREAM.LIST"),
    ask("create", "STREAM.CREATE.orders", STREAM | {"name": "orders", "subjects": ["orders.>"]}),
    ask(
        "create again",
        "STREAM.CREATE.orders",
        STREAM | {"name": "orders", "subjects": ["orders.>"]},
    ),
    ask(
        "create differently",
        "STREAM.CREATE.orders",
        STREAM | {"name": "orders", "subjects": ["orders.>"], "max_msgs": 5},
    ),
    ask(
        "create under another name",
        "STREAM.CREATE.other",
        STREAM | {"name": "orders", "subjects": ["other.>"]},
    ),
    ask("create without a name", "STREAM.CREATE.other", {}),
    ask(
        "create on subjects of another",
        "STREAM.CREATE.other",
        STREAM | {"name": "other", "subjects": ["orders.x"]},
    ),
    ask(
        "create with a bad subject",
        "STREAM.CREATE.other",
        STREAM | {"name": "other", "subjects": ["a..b"]},
    ),
    ask("create with bad JSON", "STREAM.CREATE.other", b"{"),
    ask("create with a wrong type", "STREAM.CREATE.other", {"name": "other", "max_msgs": "5"}),
    ask(
        "create with limits",
        "STREAM.CREATE.limited",
        STREAM
        | {
            "name": "limited",
            "subjects": ["limited"],
            "max_msgs": 100,
            "max_age": 3600 * SECOND,
            "max_msg_size": 1000,
            "max_bytes": 10**8,
            "duplicate_window": 60 * SECOND,
        },
    ),
    ask(
        "create with a bad retention",
        "STREAM.CREATE.other",
        STREAM | {"name": "other", "retention": "nonsense"},
    ),
    ask(
        "create with many replicas",
        "STREAM.CREATE.other",
        STREAM | {"name": "other", "num_replicas": 9},
    ),
    ask("create without subjects", "STREAM.CREATE.plain", STREAM | {"name": "plain"}),
    ask("info of an empty stream", "STREAM.INFO.orders"),
    ask("info of a stream with null", "STREAM.INFO.orders", b"null"),
    ask("info of an unknown stream", "STREAM.INFO.nothing"),
    ask("info of a stream with bad JSON", "STREAM.INFO.orders", b"{nonsense"),
    ask(
        "update",
        "STREAM.UPDATE.limited",
        STREAM
        | {
            "name": "limited",
            "subjects": ["limited"],
            "max_msgs": 200,
            "max_age": 3600 * SECOND,
            "max_msg_size": 1000,
            "max_bytes": 10**8,
            "duplicate_window": 60 * SECOND,
        },
    ),
    ask(
        "create with words about it",
        "STREAM.CREATE.told",
        STREAM | {"name": "told", "description": "für alle", "metadata": {"team": "a", "": ""}},
    ),
    ask(
        "update the words about it",
        "STREAM.UPDATE.told",
        STREAM | {"name": "told", "metadata": {"team": "b"}},
    ),
    ask("info of a stream with words about it", "STREAM.INFO.told"),
    ask("delete a stream with words about it", "STREAM.DELETE.told"),
    ask("update an unknown stream", "STREAM.UPDATE.nothing", STREAM | {"name": "nothing"}),
    ask("update under another name", "STREAM.UPDATE.limited", STREAM | {"name": "orders"}),
    ask("names", "STREAM.NAMES"),
    ask("names by subject", "STREAM.NAMES", {"subject": "orders.eu"}),
    ask("names by a pattern", "STREAM.NAMES", {"subject": "*.eu"}),
    ask("names by a subject that nobody has", "STREAM.NAMES", {"subject": "nobody"}),
    ask("names from an offset", "STREAM.NAMES", {"offset": 2}),
    ask("names beyond the end", "STREAM.NAMES", {"offset": 200}),
    ask("names with bad JSON", "STREAM.NAMES", b"["),
    ask("list by subject", "STREAM.LIST", {"subject": "orders.eu"}),
    ask("list by a subject that nobody has", "STREAM.LIST", {"subject": "nobody"}),
]

_PUBLISHED = [
    publish(
        f"publish {number}",
        f"orders.{'abc'[number % 3]}",
        b"%d" % number,
        **({"Number": number} if number % 2 else {}),
    )
    for number in range(9)
] + [
    publish("publish with an id", "orders.a", b"once", Nats_Msg_Id="one"),
    publish("publish again with the id", "orders.a", b"once", Nats_Msg_Id="one"),
    publish("publish to a wrong stream", "orders.a", b"x", Nats_Expected_Stream="other"),
    publish("publish after the right last", "orders.b", b"x", Nats_Expected_Last_Sequence=10),
    publish("publish after a wrong last", "orders.b", b"x", Nats_Expected_Last_Sequence=3),
    publish(
        "publish after the right last of a subject",
        "orders.b",
        b"y",
        Nats_Expected_Last_Subject_Sequence=11,
    ),
    publish(
        "publish after a wrong last of a subject",
        "orders.b",
        b"y",
        Nats_Expected_Last_Subject_Sequence=2,
    ),
    publish("publish to a new subject", "orders.d", b"z", Nats_Expected_Last_Subject_Sequence=0),
    publish("publish after a wrong last id", "orders.a", b"x", Nats_Expected_Last_Msg_Id="two"),
    publish("publish nothing", "orders.empty"),
]

_MESSAGES = [
    ask("info of a used stream", "STREAM.INFO.orders"),
    ask("get a sequence", "STREAM.MSG.GET.orders", {"seq": 3}),
    ask("get one with headers", "STREAM.MSG.GET.orders", {"seq": 2}),
    ask("get one without its headers", "STREAM.MSG.GET.orders", {"seq": 2, "no_hdr": True}),
    ask("get an empty one", "STREAM.MSG.GET.orders", {"last_by_subj": "orders.empty"}),
    ask("get beyond the end", "STREAM.MSG.GET.orders", {"seq": 999}),
    ask("get the last of a subject", "STREAM.MSG.GET.orders", {"last_by_subj": "orders.c"}),
    ask("get the last of a pattern", "STREAM.MSG.GET.orders", {"last_by_subj": "orders.*"}),
    ask("get the last of no subject", "STREAM.MSG.GET.orders", {"last_by_subj": "orders.none"}),
    ask(
        "get the next of a subject", "STREAM.MSG.GET.orders", {"next_by_subj": "orders.b", "seq": 4}
    ),
    ask("get the first of a subject", "STREAM.MSG.GET.orders", {"next_by_subj": "orders.b"}),
    ask("get the next of no subject", "STREAM.MSG.GET.orders", {"next_by_subj": "orders.none"}),
    ask("get by time", "STREAM.MSG.GET.orders", {"start_time": PAST}),
    ask("get by a later time", "STREAM.MSG.GET.orders", {"start_time": FUTURE}),
    ask("get without anything", "STREAM.MSG.GET.orders", {}),
    ask("get with an empty body", "STREAM.MSG.GET.orders"),
    ask(
        "get with a contradiction", "STREAM.MSG.GET.orders", {"seq": 1, "last_by_subj": "orders.a"}
    ),
    ask("get with bad JSON", "STREAM.MSG.GET.orders", b"x"),
    ask("get from an unknown stream", "STREAM.MSG.GET.nothing", {"seq": 1}),
    ask("delete a message", "STREAM.MSG.DELETE.orders", {"seq": 1}),
    ask("delete a message of an unknown stream", "STREAM.MSG.DELETE.nothing", {"seq": 1}),
    many("direct by sequence", "DIRECT.GET.orders", {"seq": 3}, 1),
    many("direct with headers", "DIRECT.GET.orders", {"seq": 4}, 1),
    many("direct of an empty one", "DIRECT.GET.orders", {"last_by_subj": "orders.empty"}, 1),
    many("direct beyond the end", "DIRECT.GET.orders", {"seq": 999}, 1),
    many("direct last", "DIRECT.GET.orders", {"last_by_subj": "orders.c"}, 1),
    many("direct last of no subject", "DIRECT.GET.orders", {"last_by_subj": "orders.none"}, 1),
    many("direct next", "DIRECT.GET.orders", {"next_by_subj": "orders.c", "seq": 4}, 1),
    many(
        "direct next of no subject",
        "DIRECT.GET.orders",
        {"next_by_subj": "orders.none", "seq": 1},
        1,
    ),
    many("direct by time", "DIRECT.GET.orders", {"start_time": PAST}, 1),
    many("direct by a later time", "DIRECT.GET.orders", {"start_time": FUTURE}, 1),
    many("direct by subject", "DIRECT.GET.orders.orders.c", b"", 1),
    many("direct by a subject that nobody has", "DIRECT.GET.orders.orders.none", b"", 1),
    many("direct by a pattern", "DIRECT.GET.orders.orders.*", b"", 1),
    many("direct by subject with a body", "DIRECT.GET.orders.orders.c", {"seq": 1}, 1),
    many("direct with an empty body", "DIRECT.GET.orders", b"", 1),
    many("direct without anything", "DIRECT.GET.orders", {}, 1),
    many("direct with bad JSON", "DIRECT.GET.orders", b"x", 1),
    many("direct from an unknown stream", "DIRECT.GET.nothing", {"seq": 1}, 1),
    many("a batch", "DIRECT.GET.orders", {"seq": 2, "batch": 3}),
    many("a batch to the end", "DIRECT.GET.orders", {"seq": 11, "batch": 100}),
    many("a batch beyond the end", "DIRECT.GET.orders", {"seq": 999, "batch": 3}),
    many(
        "a batch of a subject",
        "DIRECT.GET.orders",
        {"next_by_subj": "orders.b", "seq": 3, "batch": 2},
    ),
    many("a batch of no subject", "DIRECT.GET.orders", {"next_by_subj": "orders.none", "batch": 2}),
    many("a batch by time", "DIRECT.GET.orders", {"start_time": PAST, "batch": 2}),
    many("a batch by a later time", "DIRECT.GET.orders", {"start_time": FUTURE, "batch": 2}),
    many("a batch of the last", "DIRECT.GET.orders", {"last_by_subj": "orders.a", "batch": 2}),
    many("a batch of a few bytes", "DIRECT.GET.orders", {"seq": 1, "batch": 10, "max_bytes": 1}),
    many("a batch without a start", "DIRECT.GET.orders", {"batch": 2}),
    many("the last of many", "DIRECT.GET.orders", {"multi_last": ["orders.a", "orders.b"]}),
    many("the last of patterns", "DIRECT.GET.orders", {"multi_last": ["orders.>"]}),
    many(
        "the last of many, in part", "DIRECT.GET.orders", {"multi_last": ["orders.>"], "batch": 2}
    ),
    many(
        "the last of many up to a sequence",
        "DIRECT.GET.orders",
        {"multi_last": ["orders.>"], "up_to_seq": 5},
    ),
    many("the last of none", "DIRECT.GET.orders", {"multi_last": ["orders.none"]}),
    many("direct at a higher level", "DIRECT.GET.orders", {"seq": 1, "batch": 0}, 1),
]

_CONSUMERS = [
    create("create a consumer", "orders.one", durable_name="one", ack_policy="explicit"),
    create("create a consumer again", "orders.one", durable_name="one", ack_policy="explicit"),
    create("create only", "orders.one", "create", durable_name="one", ack_policy="explicit"),
    create(
        "create only, differently",
        "orders.one",
        "create",
        durable_name="one",
        ack_policy="explicit",
        max_deliver=3,
    ),
    create(
        "update what there is not",
        "orders.none",
        "update",
        durable_name="none",
        ack_policy="explicit",
    ),
    create(
        "update the description",
        "orders.one",
        "update",
        durable_name="one",
        ack_policy="explicit",
        description="d",
    ),
    create("update the ack policy", "orders.one", durable_name="one", ack_policy="all"),
    create(
        "update the deliver policy",
        "orders.one",
        durable_name="one",
        ack_policy="explicit",
        deliver_policy="new",
    ),
    create(
        "a consumer of an unknown stream", "nothing.one", durable_name="one", ack_policy="explicit"
    ),
    ask(
        "a consumer of another stream",
        "CONSUMER.CREATE.orders.two",
        {"stream_name": "limited", "config": {"name": "two", "ack_policy": "none"}},
    ),
    ask(
        "a consumer of another name",
        "CONSUMER.CREATE.plain.two",
        {"stream_name": "plain", "config": {"name": "three", "ack_policy": "none"}},
    ),
    ask("a consumer without a config", "CONSUMER.CREATE.plain.two", {"stream_name": "plain"}),
    ask("a consumer with bad JSON", "CONSUMER.CREATE.orders.two", b"{"),
    create("a bad ack policy", "orders.two", ack_policy="sometimes"),
    create("a bad deliver policy", "orders.two", ack_policy="none", deliver_policy="sometimes"),
    ask(
        "a durable in the old way",
        "CONSUMER.DURABLE.CREATE.orders.old",
        {"stream_name": "orders", "config": {"durable_name": "old", "ack_policy": "explicit"}},
    ),
    ask(
        "a durable without a name",
        "CONSUMER.DURABLE.CREATE.orders.old",
        {"stream_name": "orders", "config": {"ack_policy": "explicit"}},
    ),
    ask(
        "a durable of another name",
        "CONSUMER.DURABLE.CREATE.orders.old",
        {"stream_name": "orders", "config": {"durable_name": "new", "ack_policy": "explicit"}},
    ),
    ask(
        "a durable in the ephemeral way",
        "CONSUMER.CREATE.orders",
        {"stream_name": "orders", "config": {"durable_name": "old", "ack_policy": "explicit"}},
    ),
    create("filtered", "orders.filtered", ack_policy="none", filter_subject="orders.b"),
    create(
        "filtered by the subject",
        "orders.subjected.orders.c",
        ack_policy="none",
        filter_subject="orders.c",
    ),
    create(
        "filtered by another subject",
        "orders.wrong.orders.c",
        ack_policy="none",
        filter_subject="orders.b",
    ),
    create(
        "filtered by several",
        "orders.several",
        ack_policy="none",
        filter_subjects=["orders.a", "orders.d"],
    ),
    create(
        "both filters",
        "orders.wrong",
        ack_policy="none",
        filter_subject="orders.a",
        filter_subjects=["orders.b"],
    ),
    create(
        "overlapping filters",
        "orders.wrong",
        ack_policy="none",
        filter_subjects=["orders.a", "orders.*"],
    ),
    create("an empty filter", "orders.wrong", ack_policy="none", filter_subjects=["orders.a", ""]),
    create(
        "several by the subject",
        "orders.wrong.orders.a",
        ack_policy="none",
        filter_subjects=["orders.a", "orders.b"],
    ),
    create("a filter outside", "orders.outside", ack_policy="none", filter_subject="elsewhere"),
    create(
        "by sequence",
        "orders.sequence",
        ack_policy="none",
        deliver_policy="by_start_sequence",
        opt_start_seq=5,
    ),
    create(
        "by sequence without one",
        "orders.wrong",
        ack_policy="none",
        deliver_policy="by_start_sequence",
    ),
    create(
        "by time",
        "orders.time",
        ack_policy="none",
        deliver_policy="by_start_time",
        opt_start_time=PAST,
    ),
    create(
        "by time without one", "orders.wrong", ack_policy="none", deliver_policy="by_start_time"
    ),
    create("all with a sequence", "orders.wrong", ack_policy="none", opt_start_seq=5),
    create("the last", "orders.last", ack_policy="none", deliver_policy="last"),
    create(
        "the last of a subject",
        "orders.lastof",
        ack_policy="none",
        deliver_policy="last",
        filter_subject="orders.b",
    ),
    create("new ones", "orders.new", ack_policy="none", deliver_policy="new"),
    create(
        "the last of each",
        "orders.each",
        ack_policy="none",
        deliver_policy="last_per_subject",
        filter_subject="orders.>",
    ),
    create(
        "the last of each without a filter",
        "orders.wrong",
        ack_policy="none",
        deliver_policy="last_per_subject",
    ),
    create("heartbeats of pulls", "orders.wrong", ack_policy="none", idle_heartbeat=SECOND),
    create("flow control of pulls", "orders.wrong", ack_policy="none", flow_control=True),
    create("a pattern to deliver to", "orders.wrong", ack_policy="none", deliver_subject="a.*"),
    create(
        "flow control without heartbeats",
        "orders.wrong",
        ack_policy="none",
        deliver_subject="_INBOX.x",
        flow_control=True,
    ),
    create(
        "heartbeats too often",
        "orders.wrong",
        ack_policy="none",
        deliver_subject="_INBOX.x",
        idle_heartbeat=1000,
    ),
    create(
        "waiting pulls of pushes",
        "orders.wrong",
        ack_policy="none",
        deliver_subject="_INBOX.x",
        max_waiting=5,
    ),
    create(
        "backoff that is too long",
        "orders.wrong",
        ack_policy="explicit",
        backoff=[1, 2, 3],
        max_deliver=2,
    ),
    create(
        "backoff",
        "orders.backoff",
        durable_name="backoff",
        ack_policy="explicit",
        backoff=[SECOND, 2 * SECOND],
        max_deliver=5,
    ),
    create("a bad sample", "orders.wrong", ack_policy="explicit", sample_freq="often"),
    create(
        "labels",
        "orders.labels",
        durable_name="labels",
        ack_policy="all",
        metadata={"team": "a"},
        description="who",
    ),
    create(
        "bounds",
        "orders.bounds",
        durable_name="bounds",
        ack_policy="explicit",
        max_batch=2,
        max_expires=SECOND,
        max_bytes=100,
        max_waiting=1,
        max_ack_pending=2,
        headers_only=True,
    ),
    ask("names of consumers", "CONSUMER.NAMES.orders"),
    ask("names of consumers from an offset", "CONSUMER.NAMES.orders", {"offset": 15}),
    ask("names of consumers of an unknown stream", "CONSUMER.NAMES.nothing"),
    ask("list of consumers from an offset", "CONSUMER.LIST.orders", {"offset": 15}),
    ask("list of consumers of a stream without any", "CONSUMER.LIST.limited"),
    ask("names of consumers of a stream without any", "CONSUMER.NAMES.limited"),
    ask("info of a consumer", "CONSUMER.INFO.orders.one"),
    ask("info of a consumer with a body", "CONSUMER.INFO.orders.one", {"a": 1}),
    ask("info of an unknown consumer", "CONSUMER.INFO.orders.nobody"),
    ask("info of a consumer of an unknown stream", "CONSUMER.INFO.nothing.nobody"),
    ask("how many consumers", "STREAM.INFO.orders"),
]

_PULLS = [
    pull("pull one", "orders.one", b"", 1),
    pull("pull a number", "orders.one", b"2", 2),
    pull("pull a batch", "orders.one", {"batch": 3}, 3),
    ask("info after pulls", "CONSUMER.INFO.orders.one"),
    ack("ack", "pull one", 0),
    ack("ack again", "pull one", 0),
    ack("ack with a word", "pull a number", 0, b"+ACK"),
    ack("in progress", "pull a number", 1, b"+WPI"),
    ack("refuse", "pull a number", 1, b"-NAK"),
    pull("pull what was refused", "orders.one", {"batch": 1}, 1),
    ack("never again", "pull what was refused", 0, b"+TERM"),
    ack("never again, and why", "pull a batch", 0, b"+TERM because"),
    ack("ack and pull", "pull a batch", 1, b"+NXT"),
    ack("refuse with a delay", "pull a batch", 2, b'-NAK {"delay": 3600000000000}'),
    ask("info after acks", "CONSUMER.INFO.orders.one"),
    pull("pull to the end", "orders.one", {"batch": 100, "no_wait": True}),
    pull("pull at the end", "orders.one", {"batch": 5, "no_wait": True}),
    pull("pull with an end", "orders.one", {"batch": 5, "expires": SECOND // 5}),
    pull(
        "pull with an end and without waiting",
        "orders.one",
        {"batch": 5, "expires": SECOND // 5, "no_wait": True},
    ),
    pull(
        "pull with heartbeats",
        "orders.one",
        {"batch": 5, "expires": 2 * SECOND, "idle_heartbeat": SECOND // 5},
    ),
    pull(
        "pull with heartbeats too seldom",
        "orders.one",
        {"batch": 5, "expires": SECOND, "idle_heartbeat": SECOND},
    ),
    pull("pull with bad JSON", "orders.one", b"{"),
    pull("pull with a group", "orders.one", {"batch": 1, "group": "a", "expires": SECOND // 10}),
    pull("pull from nobody", "orders.nobody", {"batch": 1}, 1),
    pull("pull from an unknown stream", "nothing.nobody", {"batch": 1}, 1),
    pull("pull too many", "orders.bounds", {"batch": 3, "expires": SECOND // 10}),
    pull("pull for too long", "orders.bounds", {"batch": 1, "expires": 5 * SECOND}),
    pull(
        "pull too much", "orders.bounds", {"batch": 1, "expires": SECOND // 10, "max_bytes": 1000}
    ),
    create(
        "create one for late words",
        "orders.late",
        durable_name="late",
        ack_policy="explicit",
        deliver_policy="last",
    ),
    pull("pull for the first time", "orders.late", {"batch": 1}, 1),
    ack("refuse the first time", "pull for the first time", 0, b"-NAK"),
    pull("pull for the second time", "orders.late", {"batch": 1}, 1),
    ack("refuse the first time again", "pull for the first time", 0, b"-NAK"),
    pull("pull after a late refusal", "orders.late", {"batch": 1, "no_wait": True}, 1),
    ask("delete the one for late words", "CONSUMER.DELETE.orders.late"),
    pull("pull two without their values", "orders.bounds", {"batch": 2, "expires": SECOND}, 2),
    pull("pull above what may be open", "orders.bounds", {"batch": 1, "expires": SECOND // 5}),
    pull(
        "pull less than a message",
        "orders.sequence",
        {"batch": 1, "expires": 10 * SECOND, "max_bytes": 1},
    ),
    pull(
        "pull a number of bytes",
        "orders.time",
        {"batch": 10, "expires": 10 * SECOND, "max_bytes": 250},
    ),
    pull("pull from a sequence", "orders.sequence", {"batch": 2}, 2),
    pull("pull a subject", "orders.filtered", {"batch": 10, "no_wait": True}),
    pull("pull subjects", "orders.several", {"batch": 10, "no_wait": True}),
    pull("pull the last", "orders.last", {"batch": 10, "no_wait": True}),
    pull("pull the last of a subject", "orders.lastof", {"batch": 10, "no_wait": True}),
    pull("pull the last of each", "orders.each", {"batch": 10, "no_wait": True}),
    pull("pull new ones", "orders.new", {"batch": 10, "no_wait": True}),
    publish("a new one", "orders.b", b"new"),
    info("info after the new one", "orders.new", 1),
    pull("pull the new one", "orders.new", {"batch": 10, "no_wait": True}),
    info("info after the last of each", "orders.each", 1),
    pull("pull three from one that acknowledges all", "orders.labels", {"batch": 3}, 3),
    ack("ack all", "pull three from one that acknowledges all", 1),
    info("info after ack all", "orders.labels", 12),
    ask("pause", "CONSUMER.PAUSE.orders.labels", {"pause_until": FUTURE}),
    ask("info while paused", "CONSUMER.INFO.orders.labels"),
    pull("pull while paused", "orders.labels", {"batch": 1, "expires": SECOND // 5}),
    ask("resume", "CONSUMER.PAUSE.orders.labels", {}),
    ask("pause an unknown consumer", "CONSUMER.PAUSE.orders.nobody", {"pause_until": FUTURE}),
    ask("delete a consumer", "CONSUMER.DELETE.orders.labels"),
    ask("delete a consumer again", "CONSUMER.DELETE.orders.labels"),
    ask("delete a consumer with null", "CONSUMER.DELETE.orders.backoff", b"null"),
    ask("delete a consumer of an unknown stream", "CONSUMER.DELETE.nothing.labels"),
]

_PUSHES = [
    Step("hear pushes", "subscribe", "_INBOX.pushes.one"),
    create(
        "push",
        "orders.push",
        ack_policy="none",
        deliver_subject="_INBOX.pushes.one",
        deliver_policy="by_start_sequence",
        opt_start_seq=10,
        idle_heartbeat=SECOND // 2,
        flow_control=True,
    ),
    Step("what is pushed", "receive", "_INBOX.pushes.one", count=6),
    pull("pull from a consumer that pushes", "orders.push", {"batch": 1, "expires": SECOND // 5}),
    ask("info of a consumer that pushes", "CONSUMER.INFO.orders.push"),
    create(
        "another place to push to while there is one",
        "orders.push",
        ack_policy="none",
        deliver_subject="_INBOX.pushes.two",
        deliver_policy="by_start_sequence",
        opt_start_seq=10,
        idle_heartbeat=SECOND // 2,
        flow_control=True,
    ),
    ask("delete a consumer that pushes", "CONSUMER.DELETE.orders.push"),
]

_BUCKETS = [
    ask("create a bucket", "STREAM.CREATE.KV_settings", BUCKET),
    publish("put", "$KV.settings.colour", b"blue"),
    publish("put again", "$KV.settings.colour", b"green"),
    publish("create a key", "$KV.settings.size", b"1", Nats_Expected_Last_Subject_Sequence=0),
    publish("create a key again", "$KV.settings.size", b"1", Nats_Expected_Last_Subject_Sequence=0),
    publish("update a key", "$KV.settings.size", b"2", Nats_Expected_Last_Subject_Sequence=3),
    publish(
        "update an old revision", "$KV.settings.size", b"2", Nats_Expected_Last_Subject_Sequence=3
    ),
    publish("delete a key", "$KV.settings.colour", KV_Operation="DEL"),
    publish("purge a key", "$KV.settings.size", KV_Operation="PURGE", Nats_Rollup="sub"),
    publish("put after a delete", "$KV.settings.colour", b"red"),
    many("get a key", "DIRECT.GET.KV_settings.$KV.settings.colour", b"", 1),
    many("get a purged key", "DIRECT.GET.KV_settings.$KV.settings.size", b"", 1),
    many("get an unknown key", "DIRECT.GET.KV_settings.$KV.settings.none", b"", 1),
    ask(
        "get a key by message",
        "STREAM.MSG.GET.KV_settings",
        {"last_by_subj": "$KV.settings.colour"},
    ),
    ask("the state of a bucket", "STREAM.INFO.KV_settings"),
    ask("the keys of a bucket", "STREAM.INFO.KV_settings", {"subjects_filter": ">"}),
    ask("some keys of a bucket", "STREAM.INFO.KV_settings", {"subjects_filter": "$KV.settings.c*"}),
    create(
        "watch",
        "KV_settings.watch",
        ack_policy="none",
        deliver_policy="last_per_subject",
        filter_subject="$KV.settings.>",
    ),
    pull("what is watched", "KV_settings.watch", {"batch": 10, "no_wait": True}),
    ask("buckets", "STREAM.NAMES", {"subject": "$KV.*.>"}),
]

_REMOVED = [
    ask("purge up to a sequence", "STREAM.PURGE.orders", {"seq": 4}),
    ask("purge with a contradiction", "STREAM.PURGE.orders", {"seq": 4, "keep": 1}),
    ask("get what was purged", "STREAM.MSG.GET.orders", {"seq": 2}),
    many("direct of what was purged", "DIRECT.GET.orders", {"seq": 2}, 1),
    many("a batch from what was purged", "DIRECT.GET.orders", {"seq": 1, "batch": 2}),
    ask("keep one", "STREAM.PURGE.orders", {"keep": 1}),
    ask("purge", "STREAM.PURGE.orders"),
    ask("purge an empty one", "STREAM.PURGE.orders", b"{}"),
    ask("purge an unknown stream", "STREAM.PURGE.nothing"),
    ask("info after the purge", "STREAM.INFO.orders"),
    ask("delete a stream with a body", "STREAM.DELETE.limited", {"a": 1}),
    ask("delete a stream", "STREAM.DELETE.limited"),
    ask("delete a stream again", "STREAM.DELETE.limited"),
    ask("delete a bucket", "STREAM.DELETE.KV_settings"),
    ask("the streams that are left", "STREAM.NAMES"),
]

_OTHERS = [
    ask("a snapshot", "STREAM.SNAPSHOT.orders", {"deliver_subject": "_INBOX.snapshot"}),
    ask("remove a peer", "STREAM.PEER.REMOVE.orders", {"peer": "x"}),
    ask("step down", "STREAM.LEADER.STEPDOWN.orders"),
    ask("a consumer's leader steps down", "CONSUMER.LEADER.STEPDOWN.orders.one"),
    ask("unpin", "CONSUMER.UNPIN.orders.one", {"group": "a"}),
    ask("reset", "CONSUMER.RESET.orders.one"),
    ask("an unknown verb", "STREAM.NONSENSE.orders"),
    ask("no verb", "NONSENSE"),
]

STEPS = [
    *_STREAMS, *_PUBLISHED, *_MESSAGES, *_CONSUMERS, *_PULLS, *_PUSHES, *_BUCKETS, *_REMOVED,
    *_OTHERS,
]  # fmt: skip
