"""The files of a log, as bytes: names, scanning, indexes, checkpoints; `verify` and `dump`.

Shared by the server, which recovers logs, and by the command line, which examines them offline.
docs/file_formats.md is the normative text. Nothing here writes a file.
"""
