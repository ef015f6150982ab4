"""Random damage to the files of one node of a real cluster, and what may come of it."""
