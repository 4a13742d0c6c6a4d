"""Chaos: a real fleet is killed, paused and cut off while events and queries go on, and a history of it is judged."""
