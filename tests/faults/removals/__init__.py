"""Take one line of the algorithm away and name what notices: `python -m tests.faults.removals`."""
