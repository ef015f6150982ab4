"""A whole server that is missed only after six seconds: one that stands still for three, as on a
machine that others use, too, keeps its session, its leaderships and its place in an ISR. For tests
that say who leads. A node that is stopped or restarted is missed as ever.

python -m tests.support.patient_server --config … --node-id N …
"""

from __future__ import annotations

import sys

from examples.cluster.local import LocalCluster
from tests.support.cluster import TestCluster

MISSED_US = 6_000_000
LEASE_US = 5_000_000
WATCHES = 12


class PatientNodes(LocalCluster):
    server = (sys.executable, "-m", "tests.support.patient_server")


class PatientCluster(TestCluster):
    """Its nodes are such servers."""

    kind: type[LocalCluster] = PatientNodes


def main() -> None:
    from jetstream_server.node.cli import main as serve
    from jetstream_server.replication.core import liveness
    from jetstream_server.replication.drivers import fetcher, hand_over
    from jetstream_server.replication.sessions import node_session
    from jetstream_server.replication.sessions.lease import SessionSettings

    settings = SessionSettings(timeout_us=MISSED_US, lease_us=LEASE_US)
    setattr(node_session, "SessionSettings", lambda: settings)  # noqa: B010
    setattr(fetcher, "SILENCE_MAX_US", MISSED_US)  # noqa: B010
    setattr(fetcher, "WATCHES_PER_SILENCE", WATCHES)  # noqa: B010
    setattr(liveness, "SILENCE_US", MISSED_US)  # noqa: B010
    for name in ("CATCH_UP_SECONDS", "TAIL_SECONDS", "PROPOSE_SECONDS"):
        setattr(hand_over, name, MISSED_US / 1e6)
    serve()


if __name__ == "__main__":
    main()
