"""`python -m jetstream_client` is the `jetstream` command."""

from jetstream_client.cli import main

main()
