"""`python -m tests.drills`: try the runbook's procedures by hand, each told by its name; with pytest's options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main([str(Path(__file__).parent), "-v", *sys.argv[1:]]))
