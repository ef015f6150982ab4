"""Consumers: positions in a stream that the server keeps and serves from, with what is delivered
and not yet acknowledged. On the node that leads the stream."""
