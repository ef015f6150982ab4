"""Which server is asked: the given ones first, the learned ones when those fail."""

from __future__ import annotations

from jetstream_client.transport.servers import Servers


def tried(servers: Servers, count: int) -> list[str]:
    """The nodes that are asked in turn while each of them fails."""
    return [servers.first, *(servers.after(servers.first) for _ in range(count - 1))]


def test_a_learned_server_is_asked_when_those_given_have_failed() -> None:
    servers = Servers(["a:1", "b:1"])
    servers.learn(["b:1", "c:1", "d:1"])
    assert tried(servers, 6) == ["a:1", "b:1", "c:1", "d:1", "a:1", "b:1"]


def test_learning_changes_nothing_while_the_given_ones_answer() -> None:
    servers = Servers(["forwarded:1"])
    servers.learn(["node-0:9292", "node-1:9292"])
    assert servers.first == "forwarded:1"
    assert servers.after("a redirect:1") == "forwarded:1"


def test_whoever_answers_stays_the_first() -> None:
    servers = Servers(["a:1"])
    servers.learn(["a:1", "b:1", "c:1"])
    servers.after("a:1")
    servers.learn(["a:1", "b:1", "c:1"])
    assert servers.first == "b:1"


def test_what_is_learned_replaces_what_was_learned_and_never_what_was_given() -> None:
    servers = Servers(["a:1"])
    servers.learn(["a:1", "b:1", "c:1"])
    servers.after("a:1")
    servers.learn(["c:1", "d:1"])
    assert tried(servers, 4) == ["a:1", "c:1", "d:1", "a:1"]


def test_the_nodes_are_learned_once_and_again_after_a_failure() -> None:
    servers = Servers(["a:1"])
    assert servers.needs_learning
    servers.learn(["a:1", "b:1"])
    assert not servers.needs_learning
    servers.after("a:1")
    assert servers.needs_learning


def test_a_node_that_is_alone_has_no_second_name() -> None:
    servers = Servers(["localhost:1"])
    servers.learn(["127.0.0.1:1"])
    assert len(servers) == 1


def test_a_node_without_an_address_is_passed_over() -> None:
    servers = Servers(["a:1"])
    servers.learn(["", "b:1", "c:1"])
    assert tried(servers, 4) == ["a:1", "b:1", "c:1", "a:1"]
