"""`python -m tests.model`."""

from tests.model.command import main

main()
