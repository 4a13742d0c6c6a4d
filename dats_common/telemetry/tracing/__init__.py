"""Spans around ports. Loaded only where an endpoint is set: without one nothing is wrapped (docs/tracing.md).

`spans` opens them, `attributes` says what they may carry, `export` sends them; the others wrap a kind of port each.
"""
