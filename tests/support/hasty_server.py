"""A whole server that waits less: a follower that lags leaves the ISR after 2 s, not 10, and files
of keys that have changed are read again after some tenths of a second, not after some seconds.

python -m tests.support.hasty_server --config … --node-id N …
"""

from __future__ import annotations

import sys
from functools import partial

from examples.cluster.local import LocalCluster
from tests.support.cluster import TestCluster

LAG_US = 2_000_000
CHECK_SECONDS = 0.2


class _LocalCluster(LocalCluster):
    server = (sys.executable, "-m", "tests.support.hasty_server")


class HastyCluster(TestCluster):
    """Its nodes are such servers."""

    kind: type[LocalCluster] = _LocalCluster


def main() -> None:
    from jetstream_server.node import reloading
    from jetstream_server.node.cli import main as serve
    from jetstream_server.replication import replica_manager

    setattr(reloading, "CHECK_SECONDS", CHECK_SECONDS)  # noqa: B010
    hasty = partial(replica_manager.Replica, lag_max_us=LAG_US)
    setattr(replica_manager, "Replica", hasty)  # noqa: B010
    serve()


if __name__ == "__main__":
    main()
