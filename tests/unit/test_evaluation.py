"""Figures of the evaluation, against what can be reckoned by hand, and the reading of its sets."""

from __future__ import annotations

import gzip
import json
import math
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dats_common.errors import ConfigurationError
from services.evaluate.figures import Bin, auroc, brier, calibration_error, reliability
from services.evaluate.picture import reliability_svg
from services.evaluate.sets import claims, questions, replies, sample

scores = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=12)


@given(scores, scores)
def test_auroc_is_the_share_of_pairs_in_the_right_order(positive: list[float], negative: list[float]) -> None:
    pairs = [1.0 if p > n else 0.5 if p == n else 0.0 for p in positive for n in negative]
    assert auroc(positive, negative) == pytest.approx(sum(pairs) / len(pairs))


def test_without_either_kind_there_is_no_auroc() -> None:
    assert math.isnan(auroc([], [1.0]))
    assert math.isnan(auroc([1.0], []))


def test_brier_is_zero_for_a_prophet_and_one_for_a_liar() -> None:
    assert brier([1.0, 0.0], [True, False]) == 0.0
    assert brier([0.0, 1.0], [True, False]) == 1.0
    assert brier([0.5, 0.5], [True, False]) == 0.25


def test_bins_hold_every_answer_once_and_the_error_weighs_them_by_size() -> None:
    bins = reliability([1.0, 0.95, 0.15, 0.1], [True, False, False, False])
    assert bins == [Bin(0.125, 0.0, 2), Bin(0.975, 0.5, 2)]
    assert calibration_error(bins) == pytest.approx((0.125 + 0.475) / 2)


def test_the_picture_is_xml_with_a_circle_for_each_bin() -> None:
    root = ET.fromstring(reliability_svg([Bin(0.2, 0.1, 3), Bin(0.8, 0.9, 7)], title="a & b"))
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 2


def test_a_sample_is_spread_evenly_and_always_the_same() -> None:
    assert sample(range(10), 5) == [0, 2, 4, 6, 8]
    assert sample([1, 2], 5) == [1, 2]


def write(folder: Path, name: str, *lines: dict[str, Any]) -> None:
    with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_the_sets_are_read_as_their_readmes_say(tmp_path: Path) -> None:
    write(tmp_path, "corpus", {"id": "d", "title": "T", "text": "A fact."})
    write(
        tmp_path,
        "queries",
        {"id": "q", "text": "What?", "kind": "answerable", "answers": [{"text": "fact", "start": 2}]},
    )
    documents, [asked] = questions(tmp_path)
    assert (documents[0].text, asked.kind, asked.answers) == ("A fact.", "answerable", ("fact",))
    evidence = [{"doc": "d", "label": "SUPPORT", "sentences": [0]}]
    write(tmp_path, "queries", {"id": "c", "text": "A fact", "evidence": evidence, "cited_doc_ids": ["d", "gone"]})
    assert [(each.context, each.supported) for each in claims(tmp_path)] == [("A fact.", True)]
    labels = ("Fully attributable", "Not fully attributable", "Generic")
    write(tmp_path, "responses", *({"response": "r", "knowledge": "k", "label": label} for label in labels))
    assert [each.supported for each in replies(tmp_path)] == [True, False]


def test_a_set_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="corpus"):
        questions(tmp_path)
