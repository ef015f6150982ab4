"""python -m tests.simulation --seeds N [--start S] [--minutes M] [--jobs J] [--trace SEED]"""

from tests.simulation.command import main

main()
