"""`python -m jetstream_client` is the `jetstream` command."""

from jetstream_command import client

client()
