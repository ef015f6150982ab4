"""A cluster whose nodes run different versions, as processes."""

from __future__ import annotations

import re
from pathlib import Path

from tests.chaos.metadata_group import Event, NodeProcess, free_addresses

OLD, NEW = 1, 2


class VersionedNode(NodeProcess):
    program = "tests.integration.versioned_node"

    def see(self, *events: str) -> Event:
        return self.wait_for(lambda event: event["event"] in events)

    def update(self, software: int) -> None:
        self.say("stop")
        self.join()
        self.start(software=software)

    def proposes_later(self, number: int) -> Event:
        self.say(f"later {number}")
        return self.see("later", "refused")


def test_a_cluster_is_updated_node_by_node(tmp_path: Path) -> None:
    voters = dict(enumerate(free_addresses(3)))
    nodes = [VersionedNode(node_id, voters, tmp_path, 20_000) for node_id in voters]
    try:
        for node in nodes:
            node.start(software=OLD)
        for node in nodes:
            node.see("registered")
        newest = nodes[2]
        newest.update(NEW)
        newest.see("registered")
        assert "nodes [0, 1] run older software" in newest.proposes_later(1)["reason"]
        nodes[1].update(NEW)
        nodes[1].see("registered")
        assert "nodes [0] run older software" in newest.proposes_later(2)["reason"]
        nodes[0].update(NEW)
        assert newest.see("level")["level"] == 2
        assert newest.proposes_later(3)["number"] == 3

        nodes[1].update(OLD)
        reason = nodes[1].see("stopped", "registered")["reason"]
        assert re.search("feature level 2, and this software understands 1: update", reason)
        nodes[1].kill()
        nodes[1].start(software=NEW)
        nodes[1].see("registered")
        assert nodes[1].proposes_later(4)["number"] == 4
    finally:
        for node in nodes:
            if node.is_started:
                node.kill()
