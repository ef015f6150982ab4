"""A randomised attack on one log: disk operations that fail, kills, power failures, in any order.

`node.py` says what is promised. `python -m tests.property.log_failures` runs many seeds.
"""
