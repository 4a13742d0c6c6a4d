"""Benchmarks: ratios first, each measured in one run on one machine. `python -m tests.bench [--quick] [names...]`."""
