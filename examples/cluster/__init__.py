"""A cluster on this machine: `scripts/cluster`. For trying things out, for measuring, for tests.

`local.py` starts, kills and stops a cluster, with `processes.py` for its processes and `ports.py`
for who has which port; `__main__.py` is its command line.
The demonstration of a failover is `failover.py`, with `publisher.py` for the load and its books,
and `scene.py` for what is seen of it.
"""
