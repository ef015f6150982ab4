from jetstream_protocol.types import StreamId
from jetstream_server.metadata.state.stream_patterns import StreamPatterns


def index_of(*patterns: str) -> StreamPatterns:
    index = StreamPatterns()
    for number, pattern in enumerate(patterns):
        index.add(pattern, StreamId(number))
    return index


def test_literal_wildcard_and_tail_patterns_all_match() -> None:
    index = index_of("a.b", "a.*", "a.>", ">", "*.b", "a", "a.b.c", "b.*")
    assert index.matching("a.b") == [0, 1, 2, 3, 4]


def test_tail_wildcard_needs_at_least_one_token() -> None:
    index = index_of("a.>")
    assert index.matching("a") == []
    assert index.matching("a.b.c.d") == [0]


def test_several_streams_on_one_pattern_are_all_found_by_id() -> None:
    index = StreamPatterns()
    index.add("a.*", StreamId(9))
    index.add("a.*", StreamId(2))
    assert index.matching("a.x") == [2, 9]


def test_removing_a_pattern_leaves_the_others_and_no_empty_branches() -> None:
    index = index_of("a.b.c", "a.b")
    index.remove("a.b.c", StreamId(0))
    assert index.matching("a.b.c") == []
    assert index.matching("a.b") == [1]
    index.remove("a.b", StreamId(1))
    assert index._root.branches == {}
