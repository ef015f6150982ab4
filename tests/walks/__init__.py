"""How far an errand walks through the server's files: counted by running it.

python -m tests.walks [--write]   counts; --write puts the numbers on the page of the architecture
"""
