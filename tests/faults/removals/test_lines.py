import ast
from pathlib import Path

import pytest

from tests.faults.removals.lines import REMOVALS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda each: each.name)
def test_the_line_that_a_removal_takes_away_is_still_there(removal):
    source = (ROOT / removal.path).read_text()
    assert removal.apply(source) != source
    ast.parse(removal.apply(source))
    assert all((ROOT / suite).exists() for suite in removal.suites)
