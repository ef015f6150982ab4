"""`python -m jetstream_server` is `jetstream-server`."""

from jetstream_server.cli import main

main()
