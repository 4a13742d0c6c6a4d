"""What a user would pick instead, under the same workload in one run. `python -m tests.bench.peers [--only NAME]`.

Each peer is installed into a virtual environment of its own and driven by a small adapter that runs there. This process
speaks with the adapter over its stdin and stdout, measures from outside, and needs none of the peers' packages.
"""
