"""One server process: its command line, its configuration, and how its parts are put together.

`cli` reads the command line, `config` the file; `node` builds the parts that join the cluster;
`app` adds the ports, starts and stops everything.
"""
