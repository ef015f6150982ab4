"""Descriptors: as many as allowed, and never so many connections that none is left for the log."""

from __future__ import annotations

import resource

import pytest

from jetstream_server.node.descriptors import (
    LOG_FILES_MAX,
    RESERVED,
    connections_max,
    log_files_max,
    raise_limit,
)
from jetstream_server.serving.dataplane.server import CONNECTIONS_MAX
from jetstream_server.serving.grpc.connection_limiter import CONNECTIONS_MAX as GRPC_CONNECTIONS_MAX


@pytest.mark.parametrize(
    ("limit", "connections"),
    [
        (resource.RLIM_INFINITY, CONNECTIONS_MAX),
        (1_000_000, CONNECTIONS_MAX),
        (1024, (1024 - RESERVED) // 2),
        (256, 1),
    ],
)
def test_connections_leave_descriptors_for_the_log(limit: int, connections: int) -> None:
    assert connections_max(limit) == connections


@pytest.mark.parametrize(
    ("limit", "wanted", "files"),
    [
        (resource.RLIM_INFINITY, CONNECTIONS_MAX, LOG_FILES_MAX),
        (1_000_000, CONNECTIONS_MAX, LOG_FILES_MAX),
        (256, CONNECTIONS_MAX, 512),
        (1024, CONNECTIONS_MAX, 512),
        (10_000, 2_000, 512 + 10_000 - RESERVED - 2 * 2_000 - GRPC_CONNECTIONS_MAX),
        (16_384, 100, 512 + 16_384 // 2),
    ],
)
def test_the_log_keeps_files_open_with_what_connections_leave(
    limit: int, wanted: int, files: int
) -> None:
    assert log_files_max(limit, wanted) == files


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        assert raise_limit() == hard
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
