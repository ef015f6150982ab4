"""The benchmarks run end to end, and say what was asked of them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner, Result

from benchmarks.__main__ import command as command_line
from benchmarks.nats_socket import NatsSocket
from benchmarks.open_loop import Arrival, Schedule, latencies
from benchmarks.performance import MEASUREMENTS
from benchmarks.read_jetstream import OrderedReader
from tests.support.fork_server import fork_server
from tests.support.kafka import running_kafka

TREE = Path(__file__).parents[2]

long = pytest.mark.skipif(
    not os.environ.get("TEST_BENCHMARKS"), reason="long: scripts/test all sets TEST_BENCHMARKS"
)


def run(*arguments: str) -> Any:
    """Forked; it starts its servers."""
    command = [sys.executable, "-m", "benchmarks", *arguments, "--json"]
    done = fork_server.run(command, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("benchmark", "messages"), [("ingest", "20000"), pytest.param("read", "5000", marks=long)]
)
def test_a_benchmark_prints_both_rates_and_their_ratio(benchmark: str, messages: str) -> None:
    report = run(benchmark, "--pairs", "1", "--messages", messages, "--sizes", "16")
    (result,) = report["results"]
    # And what a message takes of the processor.
    assert min(result[f"{side}_client_us"] for side in ("ours", "peer")) > 0
    if benchmark == "ingest":
        assert min(result[name] for name in ("ours_nodes_us", "ours_nats_us", "peer_nats_us")) > 0
        assert result["of_core"] == pytest.approx(result["ours"] / result["core"], abs=0.01)
    assert result["size"] == 16
    assert result["ours"] > 0
    assert result["peer"] > 0
    assert result["ratio"] == pytest.approx(result["ours"] / result["peer"], abs=0.01)
    assert "flush: group" in report["ours"]
    assert "sync_interval" in report["peer"]


def report(*arguments: str) -> Result:
    """`python -m benchmarks report`, in this process."""
    return CliRunner().invoke(command_line, ["report", *arguments])


@long
def test_ingest_with_replicas_says_what_replication_costs_each_side() -> None:
    report = run("ingest", "--pairs", "1", "--messages", "5000", "--sizes", "16", "--replicas", "3")
    (result,) = report["results"]
    for side in ("ours", "peer"):
        kept = result[side] / result[f"{side}_rf1"]
        assert result[f"{side}_over_rf1"] == pytest.approx(kept, abs=0.01)
    assert "3 replicas" in report["ours"]
    assert "flush: interval" in report["ours"]


@long
def test_publishing_is_measured_by_each_api_of_either_side() -> None:
    report = run("publish", "--pairs", "1", "--seconds", "0.3", "--replicas", "1")
    (result,) = report["results"]
    assert min(result[side] for side in ("send", "many", "direct", "nats_py", "raw")) > 0
    ratio = result["many"] / result["nats_py"]
    assert result["many_over_nats_py"] == pytest.approx(ratio, abs=0.01)


@long
def test_a_peer_that_is_not_there_is_left_out_with_a_clear_line() -> None:
    command = [sys.executable, "-m", "benchmarks", "publish", "--pairs", "1", "--seconds", "0.1"]
    command += ["--replicas", "1", "--peer", "liftbridge", "--address"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    done = subprocess.run([*command, address], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"liftbridge does not answer at {address}: only this server is measured" in done.stderr
    assert "send" in done.stdout


@pytest.mark.skipif(
    "TEST_KAFKA_JARS" not in os.environ or find_spec("confluent_kafka") is None,
    reason="needs scripts/kafka and confluent-kafka",
)
def test_publishing_is_measured_against_kafka(tmp_path: Path) -> None:
    with running_kafka(os.environ["TEST_KAFKA_JARS"], tmp_path) as address:
        where = ("--peer", "kafka", "--address", address)
        report = run("publish", "--pairs", "1", "--seconds", "0.3", "--replicas", "1", *where)
    (result,) = report["results"]
    assert min(result[side] for side in ("send", "many", "kafka")) > 0


@long
def test_commits_of_cursors_are_measured_by_what_they_take_of_the_node() -> None:
    report = run("cursors", "--cursors", "50", "--seconds", "1")
    assert [result["load"] for result in report["results"]] == ["shared", "single"]
    assert all(result["commit_us"] > 0 and result["rate"] > 0 for result in report["results"])


@long
def test_an_idle_link_is_measured_by_what_it_takes_of_the_node() -> None:
    report = run("idle-link", "--sizes", "128", "--messages", "2000", "--pairs", "2")
    [result] = report["results"]
    assert result["off_us"] > 0
    assert result["on_us"] > 0
    assert result["cost_percent_least"] <= result["cost_percent"] <= result["cost_percent_most"]


@long
def test_checks_on_fetches_are_measured_by_what_they_take_of_the_node() -> None:
    report = run("checks", "--sizes", "1,200000", "--fetches", "200", "--pairs", "2")
    one, many = report["results"]
    assert 1024 < one["bytes"] < 2048 < many["bytes"]
    for result in (one, many):
        assert result["off_us"] > 0
        assert result["on_us"] > 0
        least, most = result["cost_percent_least"], result["cost_percent_most"]
        assert least <= result["cost_percent"] <= most


@long
def test_latency_is_given_in_percentiles_for_each_number_of_replicas() -> None:
    report = run("latency", "--pairs", "1", "--messages", "50", "--replicas", "1,3")
    assert [result["replicas"] for result in report["results"]] == [1, 3]
    for result in report["results"]:
        for side in ("ours", "direct", "peer", "bare"):
            assert 0 < result[f"{side}_p50_us"] <= result[f"{side}_p99_us"]
        for side in ("ours", "direct"):
            assert f"{side}_leader_us" in result
            assert (f"{side}_follower_us" in result) == (result["replicas"] > 1)


@long
def test_latency_on_a_schedule_has_its_own_rate() -> None:
    few = ("--open-loop", "--pairs", "1", "--seconds", "0.5", "--replicas", "1")
    (result,) = run("latency", *few, "--rate", "200")["results"]
    for side in ("ours", "peer", "bare"):
        assert 0 < result[f"{side}_p50_us"] <= result[f"{side}_p99_us"] <= result[f"{side}_p999_us"]
        assert result[f"{side}_rate"] <= 250
    (result,) = run("latency", *few)["results"]
    assert result["ours_rate"] != 200


def test_a_message_counts_as_late_from_the_moment_when_it_was_due() -> None:
    schedule = Schedule(start=100.0, rate=1000.0)
    assert [schedule.due(at) for at in (99.0, 100.0, 100.0025)] == [0, 1, 3]
    # The server held up four messages, and answered all of them at once.
    taken = latencies(schedule, [Arrival(1, 100.001), Arrival(5, 100.010)])
    assert [round(each / 1e6) for each in taken] == [1, 9, 8, 7, 6]


@long
def test_readers_at_the_head_are_measured_by_what_a_delivery_takes_of_the_servers() -> None:
    few = ("--pairs", "1", "--seconds", "0.5", "--rates", "200", "--sizes", "16")
    report = run("tail", *few, "--readers", "1,5")
    assert [result["readers"] for result in report["results"]] == [1, 5]
    for result in report["results"]:
        for side in ("ours", "peer"):
            assert result[f"{side}_servers_us"] > 0
            assert result[f"{side}_client_us"] > 0


@long
def test_the_data_plane_is_measured_against_a_bare_sendfile() -> None:
    report = run("raw", "--pairs", "1", "--seconds", "0.2")
    figures = {result["figure"]: result for result in report["results"]}
    rate = figures["megabytes_per_second"]
    assert rate["ratio"] == pytest.approx(rate["ours"] / rate["peer"], abs=0.01)
    assert figures["client_ms_per_gigabyte"]["ours"] > 0


@long
def test_recovery_is_measured_against_reading_the_log() -> None:
    report = run("recover", "--pairs", "1", "--megabytes", "2", "--sizes", "1000")
    (result,) = report["results"]
    assert result["gigabytes"] == pytest.approx(0.002, rel=0.05)
    assert result["peer_seconds"] > 0
    assert result["runs"][0]["scan_seconds"] > 0


@long
def test_the_catch_up_of_a_follower_is_measured_on_both_sides() -> None:
    report = run("replicate", "--pairs", "1", "--megabytes", "2", "--sizes", "1000")
    (result,) = report["results"]
    assert result["messages"] == 2000
    for side in ("ours", "peer"):
        assert result[f"{side}_megabytes_per_second"] > 0


def test_the_report_is_a_page_of_what_was_measured(tmp_path: Path) -> None:
    environment = {"processor": "two cores"}
    sides = {"ours": "this server, one node", "peer": "JetStream", "environment": environment}
    row = {"size": 128, "ours": 900_000, "peer": 300_000, "ratio": 3.0, "core": 1_000_000}
    row |= {"ours_nodes_us": 1.25}
    results = tmp_path / "results"
    results.mkdir()
    (results / "ingest-1.json").write_text(json.dumps(sides | {"results": [row]}))
    page = tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    done = report(str(results), "--output", str(page), "--measured", "2026-11-25, at 79ef734")
    assert done.exit_code == 0, done.stderr
    text = page.read_text()
    assert "| measured | 2026-11-25, at 79ef734 |" in text
    assert "| processor | two cores |" in text
    assert "| plain acked ingest vs JetStream R1, 128 B | ≥ 1.7 × | 3.00 × | met |" in text
    assert "| ≤ 0.9 µs | 1.25 µs | **missed** |" in text
    assert text.count("not measured") > 10
    assert "| 128 B | 900 | 300 | 1,000 |" in text
    (image,) = re.findall(r"!\[.*\]\((.*\.svg)\)", text)
    picture = ElementTree.parse(page.parent / image).getroot()
    widths = [float(shape.get("width", 0)) for shape in picture.findall("{*}rect")][-3:]
    assert widths[0] / widths[2] == pytest.approx(0.9, abs=0.01)
    assert "900" in [shape.text for shape in picture.findall("{*}text")]


def test_a_report_of_no_results_or_of_other_files_is_refused(tmp_path: Path) -> None:
    done = report(str(tmp_path))
    assert (done.exit_code, "holds no results" in done.stderr) == (1, True), done.stderr
    (tmp_path / "read.json").write_text('{"results": []}')
    done = report(str(tmp_path))
    assert done.exit_code == 1
    assert "read.json is not what a benchmark's --json prints" in done.stderr


def test_every_measurement_of_the_report_is_a_command_with_such_options() -> None:
    commands = typer.main.get_command(command_line).commands  # type: ignore[attr-defined]
    for arguments in MEASUREMENTS.values():
        commands[arguments[0]].make_context(arguments[0], arguments[1:])


@long
def test_idle_streams_are_watched_on_every_node() -> None:
    few = ("--created", "5", "--idle", "10", "--peer-idle", "5")
    report = run("streams", *few, "--settle", "0.1", "--watch", "0.5")
    nodes = [(r["side"], r["replicas"], len(r["cpu_percent"])) for r in report["results"]]
    assert nodes == [("ours", 1, 1), ("peer", 1, 1), ("ours", 3, 3), ("peer", 3, 3)]
    assert all(min(result["resident_bytes"]) > 0 for result in report["results"])


@long
def test_typed_columns_are_compared_with_queries_by_hand_and_with_parquet() -> None:
    report = run("typed", "--records", "2000", "--runs", "1")
    assert len(report["results"]) == 3
    for result in report["results"]:
        assert min(result[way] for way in ("typed_ns", "by_hand_ns", "parquet_ns")) > 0


@long
def test_typed_columns_in_spark_are_compared_with_from_json_and_with_parquet() -> None:
    """Spark gives the same answers to all three, or the benchmark fails."""
    report = run("typed", "--spark", "--records", "2000", "--runs", "1")
    assert [result["job"] for result in report["results"]] == [
        "one field", "two fields, grouped by one",
    ]  # fmt: skip
    for result in report["results"]:
        assert min(result[way]["spark_ns"] for way in ("typed", "from_json", "parquet")) > 0


class FakeSocket:
    """Takes what the reader answers; nothing is sent anywhere."""

    def __init__(self) -> None:
        self.socket = self
        self.sent = b""

    def sendall(self, data: bytes) -> None:
        self.sent += data


def delivery(sequence: int, payload: bytes) -> bytes:
    reply = f"$JS.ACK.S.C.1.{sequence}.{sequence}.1700000000000000000.0"
    return f"MSG s 1 {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"


def reader() -> tuple[OrderedReader, FakeSocket]:
    fake = FakeSocket()
    client: NatsSocket = fake  # type: ignore[assignment]  # only its socket is used
    return OrderedReader(client), fake


def test_the_peers_reader_counts_across_any_cut() -> None:
    data = b"".join(delivery(n, b"x" * n) for n in range(1, 12))
    for cut in range(len(data)):
        ordered, _ = reader()
        ordered.feed(data[:cut])
        ordered.feed(data[cut:])
        assert (ordered.messages, ordered.bytes) == (11, 66)


def test_the_peers_reader_notices_a_gap() -> None:
    ordered, _ = reader()
    with pytest.raises(RuntimeError, match="gap"):
        ordered.feed(delivery(1, b"a") + delivery(3, b"c"))


def test_the_peers_reader_answers_flow_control() -> None:
    ordered, fake = reader()
    block = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
    line = b"HMSG s 1 $JS.FC.S.C.1 %d %d\r\n" % (len(block), len(block))
    ordered.feed(delivery(1, b"a") + line + block + b"\r\n" + delivery(2, b"b"))
    assert fake.sent == b"PUB $JS.FC.S.C.1 0\r\n\r\n"
    assert ordered.messages == 2
