"""ACL decisions against a brute-force reading of the rules, subject by subject."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.subjects import covers, matches
from jetstream_server.security.acl import (
    ALL,
    CLUSTER_OPERATIONS,
    STREAM_OPERATIONS,
    AclRule,
    Operation,
    check_rule,
    decide,
    deciding_rule,
    denying_rule,
    may_exist,
    name_matches,
)
from jetstream_server.security.state import SecurityState

LITERALS = [".".join(tokens) for n in (1, 2, 3, 4, 5) for tokens in product("abc", repeat=n)]
"""Every subject of up to five tokens; `c` stands for any token that no pattern names."""
TOKENS = st.lists(st.sampled_from(["a", "b", "*"]), max_size=3)
PATTERNS = st.builds(
    lambda tokens, tail: ".".join([*tokens, *tail]) or "*", TOKENS, st.sampled_from([[], [">"]])
)
NAMES = st.text("ab", min_size=1, max_size=4)
NAME_PATTERNS = st.text("ab*", min_size=1, max_size=5)
PRINCIPALS = st.sampled_from(["user:x", "user:y", "*"])


def rule(cluster: bool) -> st.SearchStrategy[AclRule]:
    known = [ALL, *(CLUSTER_OPERATIONS if cluster else STREAM_OPERATIONS)]
    return st.builds(
        AclRule,
        id=st.integers(1, 50),
        principal=PRINCIPALS,
        operations=st.lists(st.sampled_from(known), min_size=1, unique=True).map(tuple),
        allow=st.booleans(),
        stream=st.just("") if cluster else NAME_PATTERNS,
        subject=st.just("") if cluster else PATTERNS,
    )


RULES = st.lists(st.one_of(rule(False), rule(False), rule(True)), max_size=6)


def literals(pattern: str) -> set[str]:
    return {subject for subject in LITERALS if matches(pattern, subject)}


def is_named(pattern: str, name: str) -> bool:
    """`*` character by character."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return is_named(pattern[1:], name) or bool(name and is_named(pattern, name[1:]))
    return bool(name) and pattern[0] == name[0] and is_named(pattern[1:], name[1:])


def applies(each: AclRule, operation: Operation, name: str, subject: str) -> bool:
    if operation in CLUSTER_OPERATIONS:
        return not each.stream and (operation in each.operations or ALL in each.operations)
    if not each.stream or not is_named(each.stream, name):
        return False
    names = operation in each.operations or ALL in each.operations
    if each.allow:
        names = names or operation == Operation.DESCRIBE
        return names and literals(subject) <= literals(each.subject)
    return names and bool(literals(subject) & literals(each.subject))


@given(PATTERNS, PATTERNS)
def test_a_pattern_covers_another_when_every_subject_of_that_one_matches_it(
    outer: str, inner: str
) -> None:
    assert covers(outer, inner) is (literals(inner) <= literals(outer))


@given(NAME_PATTERNS, NAMES)
def test_a_star_in_a_name_stands_for_any_characters(pattern: str, name: str) -> None:
    assert name_matches(pattern, name) is is_named(pattern, name)


@given(RULES, st.sampled_from(list(Operation)), NAMES, PATTERNS)
def test_what_a_rule_denies_is_denied_and_what_no_rule_allows_too(
    rules: list[AclRule], operation: Operation, name: str, subject: str
) -> None:
    for each in rules:
        check_rule(each)
    if operation in CLUSTER_OPERATIONS:
        name = subject = ""
    found = [each for each in rules if applies(each, operation, name, subject)]
    wanted = any(each.allow for each in found) and all(each.allow for each in found)
    assert decide(rules, operation, name, subject) is wanted
    denying = denying_rule(rules, operation, name, subject)
    assert (denying is not None) is any(not each.allow for each in found)
    allowing = deciding_rule(rules, operation, name, subject)
    if allowing is not None:
        assert allowing in found
        assert may_exist(rules, operation, name) or operation in CLUSTER_OPERATIONS


@given(RULES, st.sampled_from(list(Operation)), NAMES, PATTERNS)
def test_the_order_of_rules_does_not_matter_and_a_denial_only_takes_away(
    rules: list[AclRule], operation: Operation, name: str, subject: str
) -> None:
    decided = decide(rules, operation, name, subject)
    assert decide(rules[::-1], operation, name, subject) is decided
    allowing = [each for each in rules if each.allow]
    assert not decided or decide(allowing, operation, name, subject)


@given(RULES)
def test_a_principal_has_its_own_rules_and_everybodys_and_no_others(rules: list[AclRule]) -> None:
    state = SecurityState().with_rules(*rules)
    kept = list(state.rules.values())
    for principal in ("user:x", "user:z"):
        found = state.rules_of(principal)
        assert sorted(found, key=id) == sorted(
            (each for each in kept if each.principal in (principal, "*")), key=id
        )
    assert SecurityState.from_dict(state.to_dict()) == state
