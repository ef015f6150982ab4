"""Publishing: plain messages, the batched publisher, and their acknowledgements. Internal."""
