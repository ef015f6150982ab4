"""A cluster on this machine: `scripts/cluster`. For trying things out, for measuring, for tests.

`local.py` starts, kills and stops a cluster; `processes.py` manages its processes and `ports.py`
its ports; `__main__.py` is its command line. `failover.py` is the demonstration of a failover, with
`publisher.py` for the load and its books, and `scene.py` for what the terminal shows.
"""
