"""One server process: its command line, configuration, and how its parts are put together.

`cli` reads the command line, `config` the file; `node` builds what takes part in the cluster, `app`
adds the ports, starts and stops everything.
"""
