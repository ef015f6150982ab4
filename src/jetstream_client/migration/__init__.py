"""Moving streams: backups, restores, imports from other systems, comparing copies.

Everything here uses the public client, and blocks. Sources yield `Records`; `restore_writer.py`
puts them into a new stream with the offsets and times they had.
"""
