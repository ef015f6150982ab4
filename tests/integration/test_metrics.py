"""`/metrics` of a running server: what happens there can be seen."""

from __future__ import annotations

import shutil
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jetstream_client import Client
from tests.support.server import ServerProcess

PROMTOOL = shutil.which("promtool")


def page(server: ServerProcess, query: str = "") -> str:
    with urllib.request.urlopen(f"{server.http}/metrics{query}", timeout=60) as answer:
        return str(answer.read().decode())


def numbers(text: str) -> dict[str, float]:
    """By name and label values."""
    return {
        ",".join((sample.name, *sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_a_server_stores_refuses_and_sends_is_counted(
    server: ServerProcess, client: Client, name: str
) -> None:
    client.create_stream(name, subject=f"{name}.>")
    before = numbers(page(server))
    client.publish(f"{name}.a", b"1", headers={"Nats-Msg-Id": "one"})
    client.publish(f"{name}.a", b"1", headers={"Nats-Msg-Id": "one"})
    with pytest.raises(Exception, match="next offset"):
        client.publish(f"{name}.a", b"2", headers={"Nats-Expected-Last-Sequence": "7"})
    assert [m.value for m in client.fetch(name, start=0, max_wait=60.0)] == [b"1"]
    after = numbers(page(server))

    def grown(series: str) -> float:
        return after[series] - before.get(series, 0.0)

    assert grown("jetstream_records_appended_total") == 1
    assert grown("jetstream_duplicates_total") == 1
    assert grown("jetstream_nacks_sent_total,precondition_failed") == 1
    assert grown("jetstream_acks_sent_total") == 2
    assert grown("jetstream_fetches_total") >= 1
    assert grown("jetstream_fetched_bytes_total") > 0
    assert grown("jetstream_fetch_seconds_total,local") > 0
    assert grown("jetstream_fetch_seconds_total,send") > 0
    assert grown("jetstream_flush_seconds_count") >= 1
    while not after["jetstream_event_loop_lag_seconds_count"]:
        time.sleep(0.1)  # It is looked at once in a while; the test's timeout ends this.
        after = numbers(page(server))
    for one in ("ready", "session_held", "controller", "raft_has_leader", "nats_connected"):
        assert after[f"jetstream_{one}"] == 1, one
    assert after["jetstream_disk_free_bytes"] > after["jetstream_disk_reserve_bytes"] > 0
    assert after["jetstream_nodes,serving"] == 1
    assert after["process_open_fds"] > 0


def test_a_stream_that_is_asked_for_has_series_of_its_own(
    server: ServerProcess, client: Client, name: str
) -> None:
    client.create_stream(name, subject=name)
    client.publish(name, b"1")
    label = f"{name},{name}"
    assert (
        numbers(page(server, f"?streams={name}"))[f"jetstream_stream_high_watermark,{label}"] == 1
    )
    assert "jetstream_stream_" not in page(server)
    with pytest.raises(urllib.error.HTTPError, match="400"):
        page(server, "?streams=" + "x" * 1000)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_finds_no_fault_with_the_names(server: ServerProcess) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"],
        input=page(server, "?streams=*"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_cursor_s_lag_is_seen_until_it_is_read_or_its_stream_is_gone(
    server: ServerProcess, client: Client, name: str
) -> None:
    client.create_stream(name, subject=name)
    begun = time.time()
    for _ in range(5):
        client.publish(name, b"1")
    before = numbers(page(server)).get("jetstream_cursors", 0)
    client.commit_cursor("billing", name, 2)
    label = f"billing,{name},{name}"
    found = numbers(page(server, f"?streams={name}"))
    assert found[f"jetstream_cursor_lag_records,{label}"] == 3
    assert 0 < found[f"jetstream_cursor_lag_seconds,{label}"] <= time.time() - begun
    assert found[f"jetstream_cursor_offset,{label}"] == 2
    assert 0 < found[f"jetstream_cursor_committed_timestamp_seconds,{label}"] <= time.time() + 60
    assert found["jetstream_cursors_left_out"] == 0
    assert found["jetstream_cursors"] == before + 1
    assert "jetstream_cursor_lag_records{" not in page(server, "?streams=nobody")
    client.commit_cursor("billing", name, 5)
    found = numbers(page(server, f"?streams=*@{name}"))
    assert found[f"jetstream_cursor_lag_records,{label}"] == 0
    assert found[f"jetstream_cursor_lag_seconds,{label}"] == 0
    client.delete_stream(name)
    assert "jetstream_cursor_lag_records{" not in page(server, f"?streams={name}")
