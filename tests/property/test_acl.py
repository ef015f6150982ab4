"""ACL decisions against a brute-force reading of the rules, subject by subject."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

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
CURSORS = st.text("ab", max_size=3)
PRINCIPALS = st.sampled_from(["user:x", "user:y", "*"])


def rule_of(cursor: str, operations: tuple[str, ...], **fields: Any) -> AclRule:
    """cursor: left out unless the rule names `commit`."""
    limit = cursor if Operation.COMMIT in operations else ""
    return AclRule(operations=operations, cursor=limit, **fields)


def rule(cluster: bool) -> st.SearchStrategy[AclRule]:
    known = [ALL, *(CLUSTER_OPERATIONS if cluster else STREAM_OPERATIONS)]
    return st.builds(
        rule_of,
        cursor=st.just("") if cluster else st.one_of(st.just(""), NAME_PATTERNS),
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


def applies(each: AclRule, operation: Operation, name: str, subject: str, cursor: str = "") -> bool:
    if operation in CLUSTER_OPERATIONS:
        return not each.stream and (operation in each.operations or ALL in each.operations)
    if not each.stream or not is_named(each.stream, name):
        return False
    names = operation in each.operations or ALL in each.operations
    if operation == Operation.COMMIT and each.cursor:
        names = names and is_named(each.cursor, cursor)
    if each.allow:
        names = names or (operation == Operation.DESCRIBE and {*each.operations} != {"commit"})
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


@given(RULES, st.sampled_from(list(Operation)), NAMES, PATTERNS, CURSORS)
def test_what_a_rule_denies_is_denied_and_what_no_rule_allows_too(
    rules: list[AclRule], operation: Operation, name: str, subject: str, cursor: str
) -> None:
    for each in rules:
        check_rule(each)
    if operation in CLUSTER_OPERATIONS:
        name = subject = ""
    asked = operation, name, subject, cursor
    found = [each for each in rules if applies(each, *asked)]
    wanted = any(each.allow for each in found) and all(each.allow for each in found)
    assert decide(rules, *asked) is wanted
    denying = denying_rule(rules, *asked)
    assert (denying is not None) is any(not each.allow for each in found)
    allowing = deciding_rule(rules, *asked)
    if allowing is not None:
        assert allowing in found
        if operation not in (*CLUSTER_OPERATIONS, Operation.COMMIT):
            assert may_exist(rules, operation, name)


@given(RULES, NAMES, PATTERNS, CURSORS)
def test_commit_as_a_right_of_its_own_is_given_to_whoever_had_it_with_read_and_to_nobody_else(
    rules: list[AclRule], name: str, subject: str, cursor: str
) -> None:
    """Rules of before have no `commit`."""
    before = SecurityState().with_rules(*(_without_commit(each) for each in rules))
    after = before.with_commit()
    assert after.rules.keys() == before.rules.keys()
    assert SecurityState.from_dict(after.to_dict()) == after
    for each in after.rules.values():
        check_rule(each)
    for principal in ("user:x", "user:z"):
        could = decide(before.rules_of(principal), Operation.READ, name, subject)
        operation = before.effective(Operation.COMMIT)
        assert decide(before.rules_of(principal), operation, name, subject, cursor) is could
        rights = after.rules_of(principal)
        reads = decide(rights, after.effective(Operation.READ), name, subject)
        commits = decide(rights, after.effective(Operation.COMMIT), name, subject, cursor)
        assert (reads and commits) is could
        for other in Operation:
            if other is not Operation.COMMIT:
                asked = (other, name, subject) if other in STREAM_OPERATIONS else (other,)
                assert decide(rights, *asked) is decide(before.rules_of(principal), *asked)


def _without_commit(each: AclRule) -> AclRule:
    operations = tuple(name for name in each.operations if name != Operation.COMMIT)
    return replace(each, operations=operations or (Operation.READ.value,), cursor="")


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
