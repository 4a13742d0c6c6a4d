"""Soak: mixed load for a while, and whether anything grows that must not."""
