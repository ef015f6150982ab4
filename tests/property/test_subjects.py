"""Matching and overlap of subjects against a brute-force reading of NATS's rules."""

from __future__ import annotations

import re
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.subjects import check_pattern, matches, overlaps, to_regex

LITERALS = [".".join(tokens) for n in (1, 2, 3, 4) for tokens in product("abc", repeat=n)]
"""Every subject of up to four tokens out of three: `c` stands for any token no pattern names."""

TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), max_size=3)
PATTERNS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]) or "*", TOKENS, st.sampled_from([[], [">"]])
)


def brute_force(pattern: str, subject: str) -> bool:
    """The rules read token by token: `*` takes one token, a final `>` takes one or more."""
    if not pattern or not subject:
        return pattern == subject
    head, _, rest = pattern.partition(".")
    token, _, others = subject.partition(".")
    if head == ">" and not rest:
        return True
    return head in ("*", token) and brute_force(rest, others)


@given(PATTERNS)
def test_matching_follows_the_rules_of_nats(pattern: str) -> None:
    check_pattern(pattern)
    compiled = re.compile(to_regex(pattern))
    for subject in LITERALS:
        expected = brute_force(pattern, subject)
        assert matches(pattern, subject) == expected
        assert bool(compiled.fullmatch(subject.encode())) == expected


@given(PATTERNS, PATTERNS)
def test_patterns_overlap_exactly_when_some_subject_matches_both(left: str, right: str) -> None:
    common = any(brute_force(left, s) and brute_force(right, s) for s in LITERALS)
    assert overlaps(left, right) == overlaps(right, left) == common


@given(st.text(max_size=8), st.text(max_size=8))
def test_a_subject_taken_for_a_pattern_matches_only_itself(pattern: str, subject: str) -> None:
    if not set(pattern) & set("*>"):
        assert matches(pattern, subject) == (pattern == subject)
