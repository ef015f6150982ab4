"""A whole server that waits less: a follower that lags leaves the ISR after SECONDS, not 10, and
files of keys that have changed are read again after some tenths of a second, not after some
seconds.

python -m tests.support.hasty_server SECONDS --config … --node-id N …
"""

from __future__ import annotations

import sys
from functools import partial

from examples.cluster.local import LocalCluster
from tests.support.cluster import TestCluster

CHECK_SECONDS = 0.2


class _HastyLocalCluster(LocalCluster):
    server = (sys.executable, "-m", "tests.support.hasty_server", "2")


class HastyCluster(TestCluster):
    """Its nodes are such servers."""

    kind: type[LocalCluster] = _HastyLocalCluster


class _PatientLocalCluster(LocalCluster):
    server = (sys.executable, "-m", "tests.support.hasty_server", "3600")


class PatientCluster(TestCluster):
    """No follower leaves its ISR because it lags."""

    kind: type[LocalCluster] = _PatientLocalCluster


def main() -> None:
    lag_us = int(sys.argv.pop(1)) * 1_000_000
    from jetstream_server.node import reloading
    from jetstream_server.node.cli import main as serve
    from jetstream_server.replication import replica_manager

    setattr(reloading, "CHECK_SECONDS", CHECK_SECONDS)  # noqa: B010
    hasty = partial(replica_manager.Replica, lag_max_us=lag_us)
    setattr(replica_manager, "Replica", hasty)  # noqa: B010
    serve()


if __name__ == "__main__":
    main()
