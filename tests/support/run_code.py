"""`python -m tests.support.run_code CODE …` is `python -c CODE …`, for what starts modules only."""

import sys

code = sys.argv.pop(1)
sys.argv[0] = "-c"
exec(code, {"__name__": "__main__"})
