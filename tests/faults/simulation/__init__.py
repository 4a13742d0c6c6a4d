"""Simulation of the production handlers: one seed, one run, bit for bit. See docs/reliability.md, "Simulation"."""
