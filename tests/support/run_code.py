"""`python -m tests.support.run_code CODE` is `python -c CODE`, for what starts modules only."""

import sys

exec(sys.argv[1], {})
