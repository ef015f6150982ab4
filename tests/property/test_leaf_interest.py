"""Who listens, as NATS tells a leaf node, against a plain list of patterns."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.subjects import matches
from jetstream_server.jetstream_api.leaf import interest as interest_module
from jetstream_server.jetstream_api.leaf.interest import Interest

tokens = st.sampled_from(["a", "b", "_INBOX"])
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.tuples(
    st.lists(st.sampled_from(["a", "b", "_INBOX", "*"]), min_size=1, max_size=3),
    st.booleans(),
).map(lambda found: ".".join([*found[0], ">"] if found[1] else found[0]))
queues = st.sampled_from(["", "workers"])
steps = st.lists(st.tuples(st.booleans(), patterns, queues), max_size=30)


def line(is_added: bool, subject: str, queue: str) -> bytes:
    words = ["LS+" if is_added else "LS-", subject, *([queue] if queue else [])]
    return " ".join([*words, *(["1"] if queue and is_added else [])]).encode()


@given(steps, subjects, queues)
def test_somebody_listens_if_a_pattern_of_theirs_matches(
    taken: list[tuple[bool, str, str]], subject: str, queue: str
) -> None:
    interest, known = Interest(), set[tuple[str, str]]()
    for is_added, pattern, group in taken:
        interest.take(line(is_added, pattern, group))
        (known.add if is_added else known.discard)((pattern, group))
    expected = any(matches(each, subject) and group == queue for each, group in known)
    assert interest.has(subject.encode(), queue.encode()) == expected
    for pattern, group in list(known):
        interest.take(line(False, pattern, group))
    assert interest._tree == {}
    assert interest._count == 0


def test_beyond_the_bound_nobody_is_known_not_to_listen() -> None:
    interest = Interest()
    for number in range(3):
        interest.take(b"LS+ inbox.%d" % number)
    assert not interest.has(b"other")
    interest._count = interest_module.SUBJECTS_MAX
    interest.take(b"LS+ inbox.more")
    assert interest.has(b"other")


def test_patterns_that_clients_choose_cost_no_more_than_others() -> None:
    interest = Interest()
    for wildcards in product("a*", repeat=8):
        interest.take(b"LS+ %b.x" % ".".join(wildcards).encode())
    assert interest.has(b"a.a.a.a.y") is False
    assert interest.has(b"a.a.a.a.a.a.a.a.y"), "256 ways were not looked at"
    deep = b".".join([b"b"] * 2000)
    interest.take(b"LS+ " + deep)
    assert interest.has(deep)
