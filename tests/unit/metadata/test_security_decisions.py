"""Tokens and ACL rules in the metadata: decided alike everywhere, kept by snapshots."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest

from jetstream_protocol.errors import InvalidRequestError, NotFoundError, PreconditionFailedError
from jetstream_protocol.types import WallUs
from jetstream_server.metadata.state import security_decisions
from jetstream_server.metadata.state.changes import SecurityChanged
from jetstream_server.metadata.state.commands import (
    COMMIT_LEVEL,
    FEATURE_LEVEL_MAX,
    AddAcl,
    BootstrapSecurity,
    CreateToken,
    RemoveAcl,
    RevokeToken,
    SetCluster,
)
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.security.acl import Operation, decide

from .cluster import Cluster

TOKEN = CreateToken(token_id="0a1b", principal="user:x", hash="scrypt$1$2", created_at_us=WallUs(7))
READ = AddAcl(
    principal="user:x", operations=("read",), allow=True, stream="orders", subject="orders.>"
)
FIRST = BootstrapSecurity(
    token_id="ffff", principal="user:admin", hash="scrypt$3", created_at_us=WallUs(7)
)


def at_level_2() -> Cluster:
    return Cluster.at_level(1, FeatureLevel(2))


def test_below_its_feature_level_a_command_is_not_known() -> None:
    cluster = Cluster(1)
    for command in (TOKEN, READ, FIRST):
        with pytest.raises(InvalidRequestError, match="unknown metadata operation"):
            cluster.do(command)


def test_a_token_is_kept_until_it_is_revoked() -> None:
    cluster = at_level_2()
    cluster.do(TOKEN)
    assert list(map(type, cluster.changes)) == [SecurityChanged]
    assert cluster.registry.security.tokens["0a1b"].principal == "user:x"
    cluster.do(TOKEN)
    assert cluster.changes == []
    with pytest.raises(PreconditionFailedError, match="already"):
        cluster.do(replace(TOKEN, principal="user:y"))
    cluster.do(RevokeToken(token_id="0a1b"))
    assert not cluster.registry.security.tokens
    with pytest.raises(NotFoundError):
        cluster.do(RevokeToken(token_id="0a1b"))


@pytest.mark.parametrize(
    "wrong",
    [
        replace(TOKEN, principal="x"),
        replace(TOKEN, principal="user:"),
        replace(TOKEN, principal="node:1"),
        replace(TOKEN, token_id=""),
        replace(TOKEN, hash=""),
        replace(TOKEN, hash="x" * 300),
        replace(READ, subject=""),
        replace(READ, operations=()),
        replace(READ, operations=("read", "fly")),
        replace(READ, stream=""),
        replace(READ, stream="(a+)+$"),
        replace(READ, principal="everybody"),
        replace(FIRST, principal="*"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(wrong: CreateToken) -> None:
    cluster = at_level_2()
    with pytest.raises(InvalidRequestError):
        cluster.do(wrong)
    assert cluster.changes == []


def test_a_rule_that_says_the_same_is_the_same() -> None:
    cluster = at_level_2()
    first = cluster.do(READ)
    assert first["created"]
    assert cluster.do(READ) == {**first, "created": False, "revision": cluster.registry.revision}
    other = cluster.do(replace(READ, allow=False))
    assert other["id"] != first["id"]
    cluster.do(RemoveAcl(rule_id=other["id"]))
    assert list(cluster.registry.security.rules) == [first["id"]]
    with pytest.raises(NotFoundError):
        cluster.do(RemoveAcl(rule_id=other["id"]))


EARLIER = FeatureLevel(COMMIT_LEVEL - 1)
COMMIT = replace(READ, operations=("commit",), cursor="billing-*")


def at_level(level: FeatureLevel) -> Cluster:
    """As long as nobody raises it: every node understands all."""
    return Cluster.at_level(1, level, FEATURE_LEVEL_MAX)


def test_older_software_s_words_for_what_it_does_not_know() -> None:
    """Results are part of the state."""
    cluster = at_level(EARLIER)
    with pytest.raises(InvalidRequestError) as refused:
        cluster.do(replace(COMMIT, cursor=""))
    assert refused.value.message == (
        "'commit' is not an operation on streams: they are all, create, describe, alter, delete, "
        "purge, read"
    )
    with pytest.raises(InvalidRequestError, match="unknown fields 'cursor': written by newer"):
        cluster.do(COMMIT)
    cluster.do(READ)
    assert b"commit" not in zlib.decompress(cluster.registry.snapshot())


def test_commit_is_a_part_of_read_until_every_node_knows_it() -> None:
    cluster = at_level(EARLIER)
    rules = [cluster.do(READ)["id"], cluster.do(replace(READ, allow=False, stream="o2"))["id"]]
    rules.append(cluster.do(replace(READ, operations=("all",), principal="user:y"))["id"])
    state = cluster.registry.security
    assert not state.has_commit
    assert state.effective(Operation.COMMIT) is Operation.READ
    cluster.do(SetCluster(feature_level=COMMIT_LEVEL))
    assert SecurityChanged in map(type, cluster.changes)
    state = cluster.registry.security
    assert state.effective(Operation.COMMIT) is Operation.COMMIT
    operations = [state.rules[rule_id].operations for rule_id in rules]
    assert operations == [("read", "commit"), ("read",), ("all",)]
    assert decide(state.rules_of("user:x"), Operation.COMMIT, "orders", "orders.a", "any")
    # What somebody may read from now on has nothing to do with it.
    cluster.do(replace(READ, principal="user:late"))
    state = cluster.registry.security
    assert not decide(state.rules_of("user:late"), Operation.COMMIT, "orders", "orders.a", "any")


def test_a_rule_for_some_cursors_is_kept_and_is_not_the_one_for_all() -> None:
    cluster = at_level(COMMIT_LEVEL)
    first = cluster.do(COMMIT)
    assert cluster.do(COMMIT)["id"] == first["id"]
    assert cluster.do(replace(COMMIT, cursor=""))["id"] != first["id"]
    assert cluster.registry.security.rules[first["id"]].cursor == "billing-*"
    restored = Registry()
    restored.restore(cluster.registry.snapshot())
    assert restored.security == cluster.registry.security
    for wrong in (replace(COMMIT, operations=("all",)), replace(COMMIT, cursor="a b")):
        with pytest.raises(InvalidRequestError, match="cursors"):
            cluster.do(wrong)


def test_the_first_administrator_may_do_everything_and_there_is_one_first() -> None:
    cluster = at_level_2()
    cluster.do(READ)
    cluster.do(FIRST)
    state = cluster.registry.security
    assert len(state.rules) == 3
    for operation in Operation:
        assert decide(state.rules_of("user:admin"), operation, "any", "any.>")
    with pytest.raises(PreconditionFailedError, match="user:admin"):
        cluster.do(replace(FIRST, token_id="eeee", principal="user:other"))
    for rule in state.rules_of("user:admin"):
        cluster.do(RemoveAcl(rule_id=rule.id))
    cluster.do(replace(FIRST, token_id="eeee", principal="user:other"))


def test_a_snapshot_keeps_tokens_and_rules_and_tells_of_a_difference() -> None:
    cluster = at_level_2()
    before = cluster.registry.snapshot()
    cluster.do(TOKEN)
    cluster.do(FIRST)
    restored = Registry()
    restored.restore(before)
    restored.take_changes()
    restored.restore(cluster.registry.snapshot())
    assert restored.security == cluster.registry.security
    assert SecurityChanged in map(type, restored.take_changes())
    assert restored.snapshot() == cluster.registry.snapshot()
    assert b"security" not in before


def test_there_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_decisions, "TOKENS_MAX", 1)
    monkeypatch.setattr(security_decisions, "RULES_MAX", 1)
    cluster = at_level_2()
    cluster.do(TOKEN)
    cluster.do(READ)
    with pytest.raises(PreconditionFailedError, match="revoke some"):
        cluster.do(replace(TOKEN, token_id="0a1c"))
    with pytest.raises(PreconditionFailedError, match="remove some"):
        cluster.do(replace(READ, principal="user:y"))
