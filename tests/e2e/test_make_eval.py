"""`dats-rag eval` on a made set, through the fleet that it starts for it."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fleet import bare_environment
from tiny_cross_encoder import save_cross_encoder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DOCUMENTS = {
    "tides": "High tide comes about fifty minutes later each day, because the moon moves on.",
    "bread": "A sourdough loaf is baked at 230 degrees and cools for an hour before it is cut.",
    "chess": "In chess a pawn that reaches the last rank is promoted, mostly to a queen.",
    "bees": "A honey bee tells the others where flowers are by a dance in the hive.",
    "torn": "a null\0 character",  # which the contract refuses
}
JUDGED = {
    "why does high tide come later each day": {"tides": 1},
    "at which temperature is sourdough bread baked": {"bread": 1},
    "what happens to a pawn on the last rank": {"chess": 1, "torn": 1},
    "how do honey bees tell each other where flowers are": {"torn": 1},
}
OFFCORPUS = "parliamentary elections in New Zealand"
NDCG = (1 + 1 + 1 / (1 + 1 / math.log2(3)) + 0) / 4


def made(
    folder: Path,
    *,
    documents: Mapping[str, str] = DOCUMENTS,
    questions: Mapping[str, Mapping[str, int]] = JUDGED,
    repeat: int = 1,
) -> Path:
    """A folder with the set `made`, a set of nothing known and a README, as an evaluation's."""
    of_set = folder / "made"
    of_set.mkdir(parents=True)
    (folder / "unknown").mkdir()
    (folder / "README.md").write_text("About the sets")
    asked, judged = [], ["query-id\tcorpus-id\tscore"]
    for turn in range(repeat):
        for number, (text, relevant) in enumerate(questions.items()):
            asked.append({"id": f"q{turn}-{number}", "text": text})
            judged += [f"q{turn}-{number}\t{document}\t{gain}" for document, gain in relevant.items()]
    asked.append({"id": "off", "text": OFFCORPUS, "kind": "offcorpus"})
    corpus = [{"id": name, "title": "", "text": text} for name, text in documents.items()]
    for name, lines in (("corpus", corpus), ("queries", asked)):
        content = "".join(json.dumps(line) + "\n" for line in lines)
        (of_set / f"{name}.jsonl.gz").write_bytes(gzip.compress(content.encode()))
    (of_set / "qrels.tsv").write_text("\n".join(judged) + "\n")
    return folder


def command(folder: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "services.cli", "eval", str(folder), "--out", str(out), *options]


def evaluated(folder: Path, out: Path, *options: str, status: int = 0) -> tuple[dict[str, Any], str]:
    """The report, and what was said besides."""
    ended = subprocess.run(
        command(folder, out, *options), env=bare_environment(), capture_output=True, text=True, timeout=200
    )
    assert ended.returncode == status, ended.stderr
    return json.loads((out / "report.json").read_text()), ended.stderr


def refused(folder: Path, out: Path, *options: str) -> str:
    """What was said when nothing was measured."""
    ended = subprocess.run(
        command(folder, out, *options), env=bare_environment(), capture_output=True, text=True, timeout=200
    )
    assert (ended.returncode, ended.stdout) == (78, ""), ended.stderr
    return ended.stderr


def assert_figures(figures: Mapping[str, Any]) -> None:
    assert figures["complete"] is True
    assert figures["ndcg_at_10"] == pytest.approx(NDCG, abs=1e-4)
    assert figures["recall_at_5"] == pytest.approx((1 + 1 + 0.5 + 0) / 4)
    assert figures["mrr_at_10"] == pytest.approx(3 / 4)
    assert (figures["refused_judged"], figures["refused_offcorpus"]) == (0.0, 1.0)
    assert 0 < figures["latency_p50_ms"] <= figures["latency_p95_ms"]


def test_a_set_is_measured_reported_and_held_against_a_baseline(tmp_path: Path) -> None:
    folder, out, baseline = made(tmp_path / "data"), tmp_path / "out", tmp_path / "baseline.json"
    report, said = evaluated(folder, out, "--write-baseline", str(baseline))
    assert (report["complete"], report["skipped"]) == (True, ["unknown"])
    assert "unknown: skipped" in said
    of_set = report["retrieval"]["made"]
    assert (of_set["domain"], of_set["documents"], of_set["documents_refused"], of_set["chunks"]) == ("docs", 5, 1, 4)
    assert "null character" in of_set["refusals"][0]
    assert of_set["questions"] == {"judged": 4, "offcorpus": 1}
    assert list(of_set["modes"]) == ["hybrid", "vector", "keyword"]
    for figures in of_set["modes"].values():
        assert_figures(figures)
    assert "| made | hybrid | 0.625 | 0.653 | 0.750 | 0.0% | 100.0% |" in (out / "report.md").read_text()
    assert len([bar for bar in ET.parse(out / "retrieval.svg").iter() if bar.get("class") == "bar"]) == 3

    # Again, held against itself; then against one that was better, which this ranking has fallen from.
    one_mode = ("--mode", "keyword", "--baseline", str(baseline))
    report, _ = evaluated(folder, tmp_path / "again", *one_mode)
    assert report["comparison"]["compared"] == ["made keyword"]
    better = json.loads(baseline.read_text())
    better["made"]["modes"]["keyword"]["mrr_at_10"] += 0.01
    baseline.write_text(json.dumps(better))
    report, said = evaluated(folder, tmp_path / "worse", *one_mode, status=1)
    assert report["comparison"]["drops"] == ["made keyword: mrr_at_10 is 0.7500, the baseline has 0.7600"]
    assert "Dropped: made keyword: mrr_at_10" in said


def test_other_data_is_never_compared(tmp_path: Path) -> None:
    folder, baseline = made(tmp_path / "data"), tmp_path / "baseline.json"
    figures = {"ndcg_at_10": 0.1, "recall_at_5": 0.1, "mrr_at_10": 0.1}
    baseline.write_text(json.dumps({"made": {"fingerprint": "other", "questions": 4, "modes": {"hybrid": figures}}}))
    options = ("--mode", "hybrid", "--questions", "4", "--baseline", str(baseline))
    report, said = evaluated(folder, tmp_path / "out", *options, status=1)
    assert report["comparison"]["compared"] == []
    assert "Not compared: made: the baseline is of other data" in said


def test_ctrl_c_leaves_what_was_done_and_says_so(tmp_path: Path) -> None:
    folder, out = made(tmp_path / "data", repeat=300), tmp_path / "out"
    with subprocess.Popen(
        command(folder, out),
        env=bare_environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "questions asked, hybrid" in line:
                break
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the fleet hears it too
        running.stderr.read()
        assert running.wait(timeout=60) == 130
    report = json.loads((out / "report.json").read_text())
    assert report["complete"] is False
    modes = report["retrieval"]["made"]["modes"]
    assert_figures(modes["hybrid"])
    assert "keyword" not in modes
    assert modes.get("vector", {"complete": False})["complete"] is False
    assert (out / "report.md").read_text().startswith("**Not complete**")


def test_a_reranker_of_ones_own_is_measured_beside_fusion(tmp_path: Path) -> None:
    """The model likes owls; without it the text that says what was asked comes first."""
    (model := tmp_path / "model").mkdir()
    save_cross_encoder(model, labels=["relevance"], liked="owls", openvino=True)
    config = tmp_path / "reranked.yaml"
    config.write_text(
        json.dumps(
            {"query": {"reranking": {"enabled": True, "model": str(model), "deadline_ms": 30_000, "certain_lead": 1}}}
        )
    )
    asked = "refunds are paid within fourteen days"
    documents = {"refunds": asked, "owls": "refunds are paid within fourteen days owls owls owls owls owls"}
    folder = made(tmp_path / "data", documents=documents, questions={asked: {"owls": 1}})
    options = ("--config", str(config), "--mode", "hybrid", "--part", "retrieval")
    report, _ = evaluated(folder, tmp_path / "out", *options)
    modes = report["retrieval"]["made"]["modes"]
    assert {mode: figures["mrr_at_10"] for mode, figures in modes.items()} == {"hybrid": 0.5, "reranked": 1.0}
    reranked = {figure: modes["reranked"][figure] for figure in ("reranked", "in_time", "ndcg_gain_where_reranked")}
    assert reranked == {"reranked": 1.0, "in_time": 1.0, "ndcg_gain_where_reranked": 0.3691}
    assert report["config"] == "reranked.yaml"
    assert "| made | reranked | 1.000 | 1.000 | 1.000 |" in (tmp_path / "out" / "report.md").read_text()


def test_an_evaluation_neither_reaches_a_fleet_that_works_nor_lets_others_in(tmp_path: Path) -> None:
    config = tmp_path / "ours.yaml"
    ours = {
        "sql": {"url": "postgresql+asyncpg://dats@db.example/dats"},
        "events": {"rabbitmq": {"url": "amqp://dats@rabbitmq.example/"}},
        "lightrag": {"vector_store": {"url": "https://qdrant.example:6333"}},
        "auth": {"mode": "required"},
        "server": {"host": "0.0.0.0"},
    }
    config.write_text(json.dumps(ours))
    said = refused(made(tmp_path / "data"), tmp_path / "out", "--config", str(config))
    assert "leave sql.url, events.rabbitmq, lightrag.vector_store, auth.mode, server.host out" in said
    assert not (tmp_path / "out").exists()


def test_what_a_service_refuses_of_the_settings_is_said(tmp_path: Path) -> None:
    config = tmp_path / "ours.yaml"
    config.write_text("embedding: {device: 'cuda:0', backend: openvino}\n")
    assert "cuda:0" in refused(made(tmp_path / "data"), tmp_path / "out", "--config", str(config))


def test_what_cannot_be_read_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    folder = made(tmp_path / "data")
    (folder / "made" / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0-0\ttides\n")
    assert "qrels.tsv, line 2: 2 columns instead of 3" in refused(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for missing, said in (
        (("--set", "nowhere"), "no folder nowhere; it has made, unknown"),
        (("--set", "unknown"), "no evaluation set"),
    ):
        assert said in refused(folder, tmp_path / "out", *missing)
