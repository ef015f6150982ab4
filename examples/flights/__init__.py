"""A year of real flights through a real server: `scripts/demo`.

Every departure from New York's airports in 2013 is published, stored, read back by offset, still
there after the server was killed, and asked in SQL.
"""
