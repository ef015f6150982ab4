"""A cluster on this machine: `scripts/cluster`. For trying things out, for measuring, for tests.

`local.py` starts, kills and stops the processes of a cluster; `__main__.py` is its command line;
`failover.py` and `scene.py` show a leader killed under load.
"""
