"""Tests on nodes that hear late of the metadata: `python -m tests late`."""
