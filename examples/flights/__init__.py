"""A year of real flights through a real server: `scripts/demo`.

Every departure from New York's airports in 2013 is published as a plain NATS message, stored,
read back by offset, and still there after the server was killed.
"""
