"""Publishers in other languages through two failovers; `python -m tests.chaos.foreign` has more."""

from __future__ import annotations

from random import Random

import pytest

from tests.chaos.foreign.checker import Said
from tests.chaos.foreign.programs import LANGUAGES, why_not
from tests.chaos.foreign.run import Result, run
from tests.support.clocked_server import NO_MUTANT


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Of all languages for which there is a publisher, together."""
    languages = [language for language in LANGUAGES if not why_not(language)]
    if not languages:
        pytest.skip("no publisher was made: scripts/foreign-clients makes them")
    folder = tmp_path_factory.mktemp("foreign")
    faults = ["kill", "freeze"]
    return run(folder, languages, faults, mutant=NO_MUTANT, dice=Random("short"), tell=print)


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> str:
    language = str(request.param)
    if reason := why_not(language):
        pytest.skip(reason)
    return language


def test_publishers_in_other_languages_are_told_the_truth_through_failovers(
    language: str, result: Result
) -> None:
    assert [str(each) for verdict in result.of(language) for each in verdict.anomalies] == []
    said = {what for verdict in result.of(language) for what in verdict.counts}
    assert said >= {Said.STORED, Said.REFUSED, Said.NOBODY_LISTENS, Said.SILENCE}, result.lines()
