"""`python -m jetstream_server` is `jetstream-server`."""

from jetstream_command import server

server()
