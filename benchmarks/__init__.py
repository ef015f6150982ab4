"""Measurements against a peer on the same machine: `python -m benchmarks ingest --peer jetstream`.

Every figure is a pair: the same load at this server and at the peer, alternately, each with a
fresh data folder on the same disk. Read them as ratios; the absolute numbers are the machine's.
"""
