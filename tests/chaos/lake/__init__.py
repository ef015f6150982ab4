"""A stream in the lake of a real cluster, whose store fails as well (docs/chaos.md)."""
