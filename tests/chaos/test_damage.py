"""A few rounds of the damage campaign with a fixed seed; the command runs as many as one wants."""

from __future__ import annotations

import pytest

from tests.chaos.damage.campaign import Campaign

KINDS = ("segment_sealed", "data_folder")
SECONDS = 30.0
"""No round begins later: a busy machine does fewer."""


@pytest.mark.timeout(600)  # Each of its waits ends before.
@pytest.mark.usefixtures("temporary_on_disk")
def test_damage_to_one_node_loses_nothing_acknowledged_is_healed_and_is_said() -> None:
    campaign = Campaign("short run", 3, print, KINDS)
    reports = list(campaign.rounds(0, len(KINDS), SECONDS))
    assert reports
    assert [str(report) for report in reports if report.anomalies] == []
