"""Tracing on a node: what is said where OpenTelemetry is missing, and how many spans there are."""

from __future__ import annotations

import re
import sys

import pytest

from jetstream_protocol.extras import install_command
from jetstream_protocol.traces import TraceParent
from jetstream_server.node import build
from jetstream_server.node.config import Config
from jetstream_server.node.run_state import StartError
from tests.support.loops import on_loop


def start_of(config: Config) -> build.Start:
    return build.Start(config, config.nodes[0], accept_voters=False)


@on_loop
async def test_tracing_without_opentelemetry_says_what_to_install() -> None:
    wanted = start_of(Config.model_validate({"tracing": {"enabled": True}}))
    before = sys.modules.get("jetstream_server.node.tracing")
    sys.modules["jetstream_server.node.tracing"] = None  # type: ignore[assignment]
    try:
        with pytest.raises(StartError, match=re.escape(install_command("otel"))):
            await build._start_tracing(wanted)
    finally:
        del sys.modules["jetstream_server.node.tracing"]
        if before is not None:
            sys.modules["jetstream_server.node.tracing"] = before


@on_loop
async def test_tracing_is_off_by_default() -> None:
    assert await build._start_tracing(start_of(Config())) is None


def test_no_more_spans_begin_in_a_second_than_may() -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed (extra otel)")
    from opentelemetry.sdk.trace import TracerProvider

    from jetstream_protocol.types import MonotonicUs
    from jetstream_server.node.tracing import Tracing

    now = [0]
    tracing = Tracing(TracerProvider(), 0, 3, lambda: MonotonicUs(now[0]))
    parent = TraceParent(1, 1)

    def begun() -> int:
        ends = [tracing.begin(parent, "orders", offset, 0) for offset in range(10)]
        return sum(end is not None for end in ends)

    assert begun() == 3
    now[0] = 999_999
    assert begun() == 0
    now[0] = 1_000_000
    assert begun() == 3
