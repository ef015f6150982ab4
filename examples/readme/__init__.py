"""What the README shows of real runs: `scripts/record` records it, `scripts/record --check` and a
test hold the page against a new run."""
