"""The `jetstream` command: streams, publishing, fetching, and log files offline.

Output is for people, unless `--json` asks for one object (or one per line). Errors are one line on
stderr, but for those of queries. Exit codes: see `exits`. What it needs beside the SDK is the extra
`cli`.
"""
