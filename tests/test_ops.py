"""The alerts and dashboards of ops/ are about metrics that exist; Prometheus understands them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from jetstream_protocol.types import MonotonicUs
from jetstream_server.node import metrics
from jetstream_server.serving.metrics import consumer_series, cursor_series, stream_series, sums
from jetstream_server.serving.metrics.histograms import Histograms
from jetstream_server.serving.metrics.sums import StreamSums

TREE = Path(__file__).resolve().parent.parent
ALERTS = TREE / "ops" / "alerts.yml"
DASHBOARDS = sorted((TREE / "ops" / "grafana").glob("*.json"))
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)"
)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return list(group["rules"])


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for dashboard in DASHBOARDS:
        text = json.loads(dashboard.read_text())
        for panel in text["panels"]:
            for target in panel.get("targets", ()):
                yield target["expr"]
        for variable in text["templating"]["list"]:
            if variable["type"] == "query":
                yield variable["query"]


def test_every_metric_of_an_alert_or_a_dashboard_exists() -> None:
    collected = [
        *metrics.families(None),
        *sums.families(StreamSums()),
        *Histograms().collect(),
        *stream_series.series([], MonotonicUs(0)),
        *cursor_series.series([], 0),
        *consumer_series.series([]),
    ]
    known: set[str] = set()
    for family in collected:
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
        known |= {family.name + end for end in ends.get(family.type, ("",))}
    named = {name for text in expressions() for name in re.findall(r"\bjetstream_\w+", text)}
    assert len(named) > 30
    assert named - known == set()


def test_every_alert_has_a_section_that_says_what_to_do() -> None:
    page = (TREE / "docs" / "operations" / "alerts.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    assert sections.keys() == {rule["alert"] for rule in rules()}
    for rule in rules():
        section = sections[rule["alert"]]
        assert f"`{rule['expr']}`" in section
        assert "What to do: " in section
        assert (
            rule["annotations"]["runbook_url"]
            == f"docs/operations/alerts.md#{rule['alert'].lower()}"
        )


@pytest.mark.parametrize("page", ["ops/prometheus.yml", "docs/operations/alerts.md"])
def test_the_second_scrape_job_keeps_every_series_of_streams_and_cursors(page: str) -> None:
    """Also those that say how many are missing; and nothing that the first job has."""
    text = (TREE / page).read_text()
    job = re.search(
        r"job_name: jetstream-streams\b.*?regex: \"(.*?)\", action: keep", text, re.DOTALL
    )
    assert job is not None
    singles = [
        *stream_series.series([], MonotonicUs(0)),
        *cursor_series.series([], 0),
        *consumer_series.series([]),
    ]
    names = {sample.name for each in singles for sample in each.samples} | {
        each.name for each in singles
    }
    assert {name for name in names if not re.fullmatch(job[1], name)} == set()
    others = {
        each.name
        for each in (*metrics.families(None), *sums.families(StreamSums()), *Histograms().collect())
    }
    assert {name for name in others if re.fullmatch(job[1], name)} == set()


@needs_promtool
def test_prometheus_understands_the_alerts() -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout


@needs_promtool
def test_prometheus_understands_every_query_of_the_dashboards(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    queries = [
        text.replace("$stream", ".*") for text in expressions() if "label_values" not in text
    ]
    group = {
        "name": "queries",
        "rules": [{"record": f"q:{at}", "expr": text} for at, text in enumerate(queries)],
    }
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [group]}))
    done = subprocess.run(
        [PROMTOOL, "check", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@needs_promtool
def test_an_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    """The one with an expression of two parts, one that is a sum, and one with a delay; and one
    for each cursor, whichever node tells of it."""
    late = '{cursor="billing",stream="orders",subject="orders.>",instance="a"}'
    early = '{cursor="audit",stream="orders",subject="orders.>",instance="a"}'
    test = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": 'jetstream_controller{instance="a"}', "values": "1 1 0 0 0 0"},
                    {"series": 'jetstream_controller{instance="b"}', "values": "0 0 0 0 0 0"},
                    {"series": 'jetstream_ready{instance="a"}', "values": "1 1 1 0 0 0"},
                ],
                "alert_rule_test": [
                    {"eval_time": "1m", "alertname": "JetstreamNoController", "exp_alerts": []},
                    {
                        "eval_time": "4m",
                        "alertname": "JetstreamNoController",
                        "exp_alerts": [_fired("JetstreamNoController", {})],
                    },
                    {"eval_time": "3m", "alertname": "JetstreamNotReady", "exp_alerts": []},
                    {
                        "eval_time": "5m",
                        "alertname": "JetstreamNotReady",
                        "exp_alerts": [_fired("JetstreamNotReady", {"instance": "a"})],
                    },
                ],
            },
            {
                "interval": "1m",
                "input_series": [
                    {"series": f"jetstream_cursor_lag_seconds{late}", "values": "1200+60x20"},
                    {"series": f"jetstream_cursor_lag_seconds{early}", "values": "0+60x20"},
                ],
                "alert_rule_test": [
                    {"eval_time": "15m", "alertname": "JetstreamConsumerLate", "exp_alerts": []},
                    {
                        "eval_time": "16m",
                        "alertname": "JetstreamConsumerLate",
                        "exp_alerts": [
                            _fired(
                                "JetstreamConsumerLate", {"cursor": "billing", "stream": "orders"}
                            )
                        ],
                    },
                ],
            },
            {
                "interval": "1m",
                "input_series": [
                    {"series": 'jetstream_streams_left_out{instance="a"}', "values": "0x20"},
                    {"series": 'jetstream_cursors_left_out{instance="a"}', "values": "0 0 7x18"},
                ],
                "alert_rule_test": [
                    {"eval_time": "6m", "alertname": "JetstreamSeriesLeftOut", "exp_alerts": []},
                    {
                        "eval_time": "7m",
                        "alertname": "JetstreamSeriesLeftOut",
                        "exp_alerts": [_fired("JetstreamSeriesLeftOut", {})],
                    },
                ],
            },
            *(_counted_before_the_first_scrape(*each) for each in _AT_START),
        ],
    }
    _holds(test, tmp_path / "test.yml")


@needs_promtool
def test_a_node_that_is_down_counts_as_one_that_is_not_ready(tmp_path: Path) -> None:
    panels = json.loads((TREE / "ops" / "grafana" / "cluster.json").read_text())["panels"]
    (query,) = next(each for each in panels if each["title"] == "Nodes not ready")["targets"]
    # One goes down, one is not ready from then on, and one keeps on.
    series = {
        'up{job="jetstream",instance="a"}': "1 0x9",
        'jetstream_ready{job="jetstream",instance="a"}': "1 stale",
        'up{job="jetstream",instance="b"}': "1x10",
        'jetstream_ready{job="jetstream",instance="b"}': "1 0x9",
        'up{job="jetstream",instance="c"}': "1x10",
        'jetstream_ready{job="jetstream",instance="c"}': "1x10",
    }
    test = {
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": each, "values": values} for each, values in series.items()
                ],
                "promql_expr_test": [
                    {
                        "expr": query["expr"],
                        "eval_time": f"{minute}m",
                        "exp_samples": [{"labels": "{}", "value": count}],
                    }
                    for minute, count in ((0, 0), (1, 2), (9, 2))
                ],
            }
        ]
    }
    _holds(test, tmp_path / "test.yml")


def _holds(test: dict[str, Any], path: Path) -> None:
    """path: of a file for promtool."""
    assert PROMTOOL is not None
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


_AT_START = (
    ("JetstreamLossyElection", "jetstream_lossy_elections_total", 10),
    ("JetstreamSuspectedGaps", "jetstream_suspected_gaps_total", 10),
    ("JetstreamDiskLosesRecords", "jetstream_damaged_ranges_found_total", 60),
)
"""Alerts of what a node may count before it is scraped, and the minutes for which they fire."""


def _counted_before_the_first_scrape(name: str, metric: str, minutes: int) -> dict[str, Any]:
    """A node counts one before it is scraped, and one more an hour and a half later. It starts
    again after 1000 minutes, and has counted as many when it is scraped."""
    fired = [_fired(name, {"instance": "a"})]
    alerts = {
        0: [], 1: fired, minutes - 1: fired, minutes + 1: [], 101: fired, 101 + minutes: [],
        999: [], 1000: fired, 999 + minutes: fired, 1001 + minutes: [],
    }  # fmt: skip
    series = {
        metric: "_ 1x99 2x894 _x4 2x100",
        "process_start_time_seconds": "_ 30x994 _x4 60000x100",
    }
    return {
        "interval": "1m",
        "input_series": [
            {"series": f'{each}{{instance="a"}}', "values": values}
            for each, values in series.items()
        ],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": expected}
            for minute, expected in alerts.items()
        ],
    }


def _fired(name: str, labels: dict[str, str]) -> dict[str, Any]:
    rule = next(rule for rule in rules() if rule["alert"] == name)
    summary = rule["annotations"]["summary"]
    for label, value in labels.items():
        summary = summary.replace(f"{{{{ $labels.{label} }}}}", value)
    return {
        "exp_labels": {"severity": rule["labels"]["severity"], **labels},
        "exp_annotations": {**rule["annotations"], "summary": summary},
    }
