"""Evaluation sets are read as their READMEs say, and what is wrong with a file is said with its line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dats_common.errors import ConfigurationError
from services.evaluate.baseline import TOLERANCE, baseline_of, compare, read_baseline, write_baseline
from services.evaluate.sets import claims, is_retrieval_set, questions, replies, retrieval_set

DOCUMENT = {"id": "d1", "title": "T", "text": "A fact."}
QUESTION = {"id": "q1", "text": "What?"}
QRELS = "query-id\tcorpus-id\tscore\n"


def packed(folder: Path, name: str, *lines: Any) -> None:
    with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
        file.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def a_set(folder: Path, *, documents: Any = (DOCUMENT,), asked: Any = (QUESTION,), judged: str = "q1\td1\t1\n") -> Path:
    folder.mkdir(exist_ok=True)
    packed(folder, "corpus", *documents)
    packed(folder, "queries", *asked)
    (folder / "qrels.tsv").write_text(QRELS + judged)
    return folder


def test_answers_claims_and_replies_are_read(tmp_path: Path) -> None:
    packed(tmp_path, "corpus", DOCUMENT)
    packed(tmp_path, "queries", {**QUESTION, "kind": "answerable", "answers": [{"text": "fact", "start": 2}]})
    [asked] = questions(tmp_path)
    assert (asked.kind, asked.answers) == ("answerable", ("fact",))
    evidence = [{"doc": "d1", "label": "SUPPORT", "sentences": [0]}]
    packed(tmp_path, "queries", {"text": "A fact", "evidence": evidence, "cited_doc_ids": ["d1", "gone"]})
    assert [(each.context, each.supported) for each in claims(tmp_path)] == [("A fact.", True)]
    labels = ("Fully attributable", "Not fully attributable", "Generic")
    packed(tmp_path, "responses", *({"response": "r", "knowledge": "k", "label": label} for label in labels))
    assert [each.supported for each in replies(tmp_path)] == [True, False]


def test_questions_are_judged_or_off_corpus_or_not_asked(tmp_path: Path) -> None:
    asked = (
        {"id": "q1", "text": "judged"},
        {"id": "q2", "text": "off", "kind": "offcorpus"},
        {"id": "q3", "text": "neither", "kind": "adversarial"},
        {"id": "q4", "text": "judged as not relevant"},
    )
    found = retrieval_set(
        a_set(tmp_path / "any-name", asked=asked, judged="q1\td1\t2\nq4\td1\t0\nq9\td1\t1\nq1\tgone\t1\n")
    )
    assert (found.name, [document.document_id for document in found.documents]) == ("any-name", ["d1"])
    assert [(each.text, each.relevant) for each in found.judged] == [("judged", {"d1": 2.0, "gone": 1.0})]
    assert [each.text for each in found.offcorpus] == ["off"]
    assert found.loose == 2, "of a question and of a document that are not there"


@pytest.mark.parametrize(
    ("languages", "domain"),
    [(("",), "docs"), (("python",), "code-python"), (("python", "go"), "code"), (("python", ""), None)],
)
def test_the_domain_is_what_the_documents_are(tmp_path: Path, languages: tuple[str, ...], domain: str | None) -> None:
    documents = [
        {"id": f"d{number}", "text": "x", **({"lang": each} if each else {})}
        for number, each in enumerate(languages, start=1)
    ]
    assert retrieval_set(a_set(tmp_path, documents=documents)).domain == domain


def test_the_fingerprint_is_of_what_the_files_hold(tmp_path: Path) -> None:
    first = retrieval_set(a_set(tmp_path / "one")).fingerprint
    other = a_set(tmp_path / "two")
    for file in other.glob("*.gz"):
        file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()), compresslevel=1, mtime=1))
    assert retrieval_set(other).fingerprint == first, "packed anew"
    assert retrieval_set(a_set(other, judged="q1\td1\t2\n")).fingerprint != first


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"documents": (DOCUMENT, "{")}, "corpus.jsonl.gz, line 2: no JSON"),
        ({"documents": (DOCUMENT, "", '["list"]')}, "corpus.jsonl.gz, line 3: no JSON object"),
        ({"documents": ({"id": "d1"},)}, "corpus.jsonl.gz, line 1: 'text' is missing"),
        ({"documents": ({"id": "d1", "text": 5},)}, "corpus.jsonl.gz, line 1: 'text' is no str"),
        ({"documents": (DOCUMENT, DOCUMENT)}, "corpus.jsonl.gz, line 2: a second document 'd1'"),
        ({"documents": ()}, "corpus.jsonl.gz has no document"),
        ({"asked": ({"id": "q1", "text": " "},)}, "queries.jsonl.gz, line 1: 'text' is blank"),
        ({"judged": "q1\td1\n"}, "qrels.tsv, line 2: 2 columns instead of 3"),
        ({"judged": "q1\td1\t1\nq1\td1\tmuch\n"}, "qrels.tsv, line 3: the score 'much'"),
        ({"judged": "q1\td1\t-1\n"}, "qrels.tsv, line 2: the score '-1'"),
        ({"judged": "q1\td1\t1\nq1\td1\t1\n"}, "qrels.tsv, line 3: a second judgement of 'd1' for 'q1'"),
        ({"judged": ""}, "qrels.tsv names no relevant document"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(tmp_path: Path, parts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        retrieval_set(a_set(tmp_path, **parts))
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["corpus.jsonl.gz", "queries.jsonl.gz", "qrels.tsv"])
def test_a_file_that_is_missing_cut_or_no_text_is_named(tmp_path: Path, name: str) -> None:
    file = a_set(tmp_path) / name
    whole = file.read_bytes()
    broken = [b"\xff\xfe\n"] if name == "qrels.tsv" else [whole[:-9], b"no gzip", gzip.compress(b'{"id": "\xff"}')]
    for content in broken:
        file.write_bytes(content)
        with pytest.raises(ConfigurationError, match=name):
            retrieval_set(tmp_path)
    file.unlink()
    assert is_retrieval_set(tmp_path), "what is there of it says what it is meant to be"
    with pytest.raises(ConfigurationError, match=f"{name} cannot be read: No such file"):
        retrieval_set(tmp_path)


# ---------------------------------------------------------------------------------------------------------- baseline


def measured(figure: float, *, fingerprint: str = "f", questions: int = 10, complete: bool = True) -> dict[str, Any]:
    figures = {"ndcg_at_10": figure, "recall_at_5": 0.9, "mrr_at_10": 0.9, "complete": complete, "latency_p50_ms": 1.0}
    of_set = {"fingerprint": fingerprint, "questions": {"judged": questions}, "modes": {"hybrid": figures}}
    return baseline_of({"made": of_set})


def test_a_figure_beyond_the_tolerance_is_a_drop_and_is_named() -> None:
    before = measured(0.8)
    for figure in (0.9, 0.8, 0.8 - 0.9 * TOLERANCE):
        same = compare(measured(figure), before)
        assert (same.compared, same.drops, same.not_compared) == (("made hybrid",), (), ())
    worse = compare(measured(0.8 - 1.1 * TOLERANCE), before)
    assert worse.drops == ("made hybrid: ndcg_at_10 is 0.7945, the baseline has 0.8000",)


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"fingerprint": "g"}, "other data (g, this is f)"),
        ({"questions": 11}, "the baseline asked 11 questions, this run 10"),
    ],
)
def test_other_data_and_other_questions_are_not_compared(other: dict[str, Any], why: str) -> None:
    found = compare(measured(0.1), measured(0.8, **other))
    assert (found.compared, found.drops) == ((), ())
    assert why in found.not_compared[0]
    assert compare(measured(0.1), {}).not_compared == ("made: the baseline does not have it",)


def test_what_was_not_asked_to_the_end_is_no_baseline() -> None:
    assert measured(0.8, complete=False) == {}


def test_a_baseline_is_renewed_set_by_set(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    write_baseline(file, {**measured(0.8), "other": measured(0.5)["made"]})
    write_baseline(file, measured(0.7))
    assert read_baseline(file) == {**measured(0.7), "other": measured(0.5)["made"]}
    for wrong in ("[]", "{", '{"made": {}}'):
        file.write_text(wrong)
        with pytest.raises(ConfigurationError, match=r"baseline\.json is no baseline"):
            read_baseline(file)
