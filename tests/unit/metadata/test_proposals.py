import pytest

from jetstream_protocol.errors import UnavailableError, UnknownOutcomeError
from jetstream_server.metadata.member.proposals import (
    BATCH_BYTES_MAX,
    BATCH_COMMANDS_MAX,
    BATCHES_MAX,
    SILENCE_SECONDS_MAX,
    Proposals,
)

RESULT = {"revision": 1}


def texts_of(batch: tuple[int, bytes, int | None] | None) -> list[str]:
    assert batch is not None
    header, *texts = batch[1].decode().split("\n")
    assert header == '{"v":1}'
    return texts


def proposals_of(*texts: str) -> Proposals:
    proposals = Proposals()
    for text in texts:
        proposals.add(text, deadline=5.0)
    return proposals


def outcomes(proposals: Proposals) -> dict[str, object]:
    return {
        text: outcome if isinstance(outcome, dict) else type(outcome)
        for text, outcome in proposals.take_outcomes()
    }


def test_what_has_queued_up_travels_together() -> None:
    proposals = proposals_of("a", "b")
    assert texts_of(proposals.next_batch(0.0)) == ["a", "b"]
    assert proposals.next_batch(0.0) is None


def test_being_applied_resolves_a_proposal_whoever_submitted_it() -> None:
    proposals = proposals_of("a", "b")
    proposals.applied("a", RESULT)
    proposals.applied("another node's", RESULT)
    assert outcomes(proposals) == {"a": RESULT}
    assert texts_of(proposals.next_batch(0.0)) == ["b"]


def test_batches_are_bounded_in_number_commands_and_bytes() -> None:
    proposals = proposals_of(*(str(number) for number in range(BATCH_COMMANDS_MAX * 10)))
    sizes = [len(texts_of(proposals.next_batch(0.0))) for _ in range(BATCHES_MAX)]
    assert sizes == [BATCH_COMMANDS_MAX] * BATCHES_MAX
    assert proposals.next_batch(0.0) is None
    proposals = proposals_of("x" * (BATCH_BYTES_MAX - 1), "yy", "z")
    assert len(texts_of(proposals.next_batch(0.0))) == 1
    assert texts_of(proposals.next_batch(0.0)) == ["yy", "z"]


def test_a_batch_makes_room_once_all_of_it_is_applied() -> None:
    proposals = proposals_of("a")
    for number in range(BATCHES_MAX):
        proposals.next_batch(0.0)
        proposals.add(f"next {number}", 5.0)
    assert proposals.next_batch(0.0) is None
    proposals.applied("a", RESULT)
    assert proposals.next_batch(0.0) is not None


def test_an_attempt_surely_without_effect_is_repeated_and_may_still_be_refused() -> None:
    proposals = proposals_of("a")
    number, _, _ = proposals.next_batch(0.0) or (0, b"", None)
    proposals.failed(number, surely=True)
    proposals.without_leader("nobody leads")
    assert outcomes(proposals) == {"a": UnavailableError}


def test_an_attempt_in_doubt_is_repeated_with_the_same_text_and_never_refused() -> None:
    proposals = proposals_of("a")
    number, first, _ = proposals.next_batch(0.0) or (0, b"", None)
    proposals.failed(number, surely=False)
    proposals.without_leader("nobody leads")
    assert outcomes(proposals) == {}
    _, second, _ = proposals.next_batch(0.1) or (0, b"", None)
    assert second == first
    proposals.pass_time(5.1)
    assert outcomes(proposals) == {"a": UnknownOutcomeError}


def test_an_attempt_without_news_is_repeated() -> None:
    proposals = proposals_of("a")
    proposals.next_batch(0.0)
    proposals.pass_time(SILENCE_SECONDS_MAX)
    assert proposals.next_batch(SILENCE_SECONDS_MAX) is None
    proposals.pass_time(SILENCE_SECONDS_MAX + 0.1)
    assert texts_of(proposals.next_batch(SILENCE_SECONDS_MAX + 0.1)) == ["a"]


def test_without_a_leader_what_was_never_sent_is_refused_at_once() -> None:
    proposals = proposals_of("a")
    proposals.without_leader("nobody leads")
    assert outcomes(proposals) == {"a": UnavailableError}
    assert len(proposals) == 0


def test_without_a_leader_nothing_that_has_ended_is_kept() -> None:
    """Thousands of streams propose twice a second, and each turn looks at all that wait."""
    proposals = proposals_of("in doubt")
    number, _, _ = proposals.next_batch(0.0) or pytest.fail("there is one")
    proposals.failed(number, surely=False)
    for text in map(str, range(3)):
        proposals.add(text, deadline=5.0)
        proposals.without_leader("none")
    assert [item.text for item in proposals._queue] == ["in doubt"]
    proposals.pass_time(5.1)
    assert not proposals._queue


def test_what_was_never_sent_in_time_surely_did_not_happen() -> None:
    proposals = proposals_of("a")
    proposals.pass_time(6.0)
    assert outcomes(proposals) == {"a": UnavailableError}


def test_stopping_ends_everything_and_is_honest_about_what_was_sent() -> None:
    proposals = proposals_of("a")
    proposals.next_batch(0.0)
    proposals.add("b", 5.0)
    proposals.abandon("stopping")
    assert outcomes(proposals) == {"a": UnknownOutcomeError, "b": UnavailableError}


def test_a_late_failure_of_a_resolved_batch_changes_nothing() -> None:
    proposals = proposals_of("a")
    number, _, _ = proposals.next_batch(0.0) or (0, b"", None)
    proposals.applied("a", RESULT)
    proposals.failed(number, surely=False)
    assert proposals.next_batch(0.0) is None
    assert outcomes(proposals) == {"a": RESULT}


class TestDecisionsOfAController:
    """They enter the log in the term in which they were made, or not at all."""

    def test_a_batch_holds_commands_of_one_term(self) -> None:
        proposals = proposals_of("free")
        proposals.add("bound", 5.0, term=3)
        proposals.add("bound, too", 5.0, term=3)
        assert texts_of(proposals.next_batch(0.0, leading=3)) == ["free"]
        batch = proposals.next_batch(0.0, leading=3)
        assert texts_of(batch) == ["bound", "bound, too"]
        assert batch is not None
        assert batch[2] == 3

    @pytest.mark.parametrize("leading", [None, 5])
    def test_in_another_term_they_are_refused(self, leading: int | None) -> None:
        proposals = Proposals()
        proposals.add("bound", 5.0, term=3)
        assert proposals.next_batch(0.0, leading) is None
        assert outcomes(proposals) == {"bound": UnavailableError}

    def test_in_doubt_they_are_not_repeated_in_another_term(self) -> None:
        proposals = Proposals()
        proposals.add("bound", 5.0, term=3)
        number, _, _ = proposals.next_batch(0.0, leading=3) or (0, b"", None)
        proposals.failed(number, surely=False)
        assert proposals.next_batch(0.0, leading=5) is None
        assert outcomes(proposals) == {"bound": UnknownOutcomeError}
