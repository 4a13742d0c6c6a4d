"""The bench of peers: its arithmetic, its protocol with a real child process, and the honesty of its table."""

from __future__ import annotations

import json
import sys
import threading
import xml.etree.ElementTree as ET
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.machine import Machine, this_machine
from tests.bench.peers import __main__ as bench
from tests.bench.peers import adapter_process
from tests.bench.peers.adapter_process import AdapterProcess, PeerFailed, open_adapter
from tests.bench.peers.catalog import PEERS, PeerSpec
from tests.bench.peers.environments import ADAPTERS, PINS, version_of
from tests.bench.peers.measure import Measured, measure, outside, recall, summary
from tests.bench.peers.picture import peers_svg
from tests.bench.peers.table import COLUMNS, Row, as_markdown, losses
from tests.bench.peers.workload import PROJECTS, TAGS, Document, Question, Workload, fingerprint, make

IN_MEMORY = Path(__file__).parents[1] / "in_memory_peer.py"
QUICK = make(quick=True)


def in_memory(tmp_path: Path, *habits: str) -> AbstractContextManager[AdapterProcess]:
    command = [sys.executable, str(IN_MEMORY), *habits]
    return open_adapter(command, path=[ADAPTERS], log=tmp_path / "peer.log")


def measured(tmp_path: Path, *habits: str, workload: Workload = QUICK) -> Measured:
    with in_memory(tmp_path, *habits) as adapter:
        return measure(adapter, workload, tmp_path)


# ---------------------------------------------------------------------------------------------------------- workload


def test_the_workload_is_the_same_for_the_same_seed_and_tells_another_one_apart() -> None:
    assert fingerprint(make(quick=True)) == fingerprint(QUICK)
    assert fingerprint(make(quick=True, seed=8)) != fingerprint(QUICK)


def test_every_filter_keeps_the_document_that_is_asked_for_and_only_a_part_of_the_others() -> None:
    whole = make(quick=False)
    by_id = {each.id: each for each in whole.documents}
    assert len(whole.documents) == 600
    assert len(whole.filtered) == 200
    for question in whole.filtered:
        kept = [each for each in whole.documents if each.project == question.where["project"]]
        kept = [each for each in kept if each.tag == question.where["tag"]]
        assert by_id[question.relevant] in kept
        assert len(kept) == len(whole.documents) / (len(PROJECTS) * len(TAGS))


def test_the_text_of_a_filtered_question_is_in_more_documents_than_are_asked_for() -> None:
    """Else who filters the first hits afterwards would find it too."""
    for question in QUICK.filtered:
        assert sum(question.text in " ".join(each.text.split()) for each in QUICK.documents) > 10


def test_no_document_that_is_deleted_is_asked_for_or_handed_in_again() -> None:
    deleted = {each.id for each in (*QUICK.idle, *QUICK.busy)}
    assert len(deleted) == len(QUICK.idle) + len(QUICK.busy)
    assert not deleted & {each.relevant for each in (*QUICK.plain, *QUICK.filtered)}
    assert not deleted & {each.id for each in QUICK.repeated}
    assert deleted <= {each.id for each in QUICK.documents}


# -------------------------------------------------------------------------------------------------------- arithmetic


def test_recall_counts_the_first_ten_hits_only() -> None:
    questions = [Question("a", "x", {}), Question("b", "y", {})]
    fill = [f"other-{n}" for n in range(9)]
    assert recall(questions, [[*fill, "x"], [*fill, "other", "y"]]) == 0.5


def test_hits_outside_the_filter_are_a_share_of_all_hits() -> None:
    documents = {"x": Document("x", "", "atlas", "api"), "y": Document("y", "", "atlas", "guide")}
    question = Question("a", "x", {"project": "atlas", "tag": "api"})
    assert outside([question, question], [["x", "y"], ["x", "x"]], documents) == pytest.approx(0.25)
    assert outside([question], [[]], documents) == 0.0


def test_a_sound_peer_is_measured_as_sound(tmp_path: Path) -> None:
    found = measured(tmp_path)
    assert (found.recall, found.filtered_recall, found.outside, found.copies) == (1.0, 1.0, 0.0, 1.0)
    assert len(found.deleted_idle_s) == len(QUICK.idle)
    assert (found.late_idle, found.late_busy, found.troubles) == (0, 0, [])
    assert len(found.query_s) == len(QUICK.plain)
    assert found.others_cores is not None
    assert 0 <= found.others_cores < 64
    assert 1 < found.rss_mib <= found.peak_rss_mib
    shown = summary(found)
    assert {column.key for column in COLUMNS} <= shown.keys()
    assert 0 < shown["query_p50_ms"] <= shown["query_p95_ms"]


def test_copies_ignored_filters_and_late_deletions_are_seen(tmp_path: Path) -> None:
    found = measured(tmp_path, "copies", "unfiltered", "late")
    assert found.copies == 2.0
    assert found.filtered_recall < 1
    assert found.outside > 0.5
    assert found.late_idle == len(QUICK.idle)


# ---------------------------------------------------------------------------------------------------------- protocol


def test_a_deletion_is_answered_while_documents_are_still_read(tmp_path: Path) -> None:
    with in_memory(tmp_path, "waits") as adapter:
        reading = threading.Thread(target=adapter.ask, args=("ingest",), kwargs={"documents": []})
        reading.start()
        adapter.ask("delete", document_id="whatever", timeout_s=20)
        reading.join(20)
        assert not reading.is_alive()


def test_what_a_peer_raises_is_the_failure_and_it_can_be_asked_again(tmp_path: Path) -> None:
    with in_memory(tmp_path, "refuses") as adapter:
        with pytest.raises(PeerFailed, match="query: ValueError: no such index"):
            adapter.ask("query", text="a", where={}, limit=1)
        assert adapter.ask("ingest", documents=[]).result is None


def test_a_peer_that_ends_fails_every_request_with_its_last_words(tmp_path: Path) -> None:
    with in_memory(tmp_path, "dies") as adapter:
        for _ in range(2):
            with pytest.raises(PeerFailed, match="its process ended: out of memory"):
                adapter.ask("query", text="a", where={}, limit=1)


def test_a_peer_that_does_not_answer_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with in_memory(tmp_path, "waits") as adapter:
        with pytest.raises(PeerFailed, match="ingest: no answer within 0 s"):
            adapter.ask("ingest", documents=[], timeout_s=0.01)
        adapter.ask("delete", document_id="whatever")  # Lets it end.


def test_nothing_of_ours_reaches_a_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATS_DATA_DIR", "ours")
    show = "import os, sys; sys.exit(os.environ.get('DATS_DATA_DIR', 'nothing') + ' ' + os.environ['HF_HUB_OFFLINE'])"
    with (
        open_adapter([sys.executable, "-c", show], log=tmp_path / "log") as adapter,
        pytest.raises(PeerFailed, match="its process ended: nothing 1"),
    ):
        adapter.ask("start", folder=str(tmp_path))


# ------------------------------------------------------------------------------------------------------ the whole run


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(bench, "CACHE", tmp_path)
    return tmp_path


ABSENT = PeerSpec("absent", "Absent", "with_dats_rag", "", (), "HTTP", "hybrid", arguments=("--",))


def test_a_peer_that_cannot_be_installed_is_a_result_with_the_reason(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(spec: PeerSpec, cache: Path) -> Path:
        raise PeerFailed("cannot be installed: no matching distribution")

    monkeypatch.setattr(bench, "installed", refuse)
    bench._obtain(ABSENT, QUICK, results, fresh=False)
    result = json.loads((results / "absent.json").read_text())
    row = bench._row(ABSENT, result)
    assert row.failed == "cannot be installed: no matching distribution"
    assert row.values == {}


def test_what_was_measured_is_kept_for_this_run_and_until_something_it_depends_on_changes(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def refuse(spec: PeerSpec, cache: Path) -> Path:
        asked.append(spec.name)
        raise PeerFailed("away")

    monkeypatch.setattr(bench, "installed", refuse)
    kept = {"key": bench._key(ABSENT, QUICK), "machine": this_machine().as_json(), "measured": {}}
    old = {**kept, "machine": MACHINE.as_json()}
    for before, workload, again in ((kept, QUICK, 0), (kept, make(quick=True, seed=9), 1), (old, QUICK, 1)):
        asked.clear()
        (results / "absent.json").write_text(json.dumps(before))
        bench._obtain(ABSENT, workload, results, fresh=False)
        assert len(asked) == again


def test_every_peer_has_its_adapter_and_names_what_it_pins() -> None:
    for spec in PEERS:
        assert (ADAPTERS / f"{spec.adapter}.py").is_file()
        if spec.pins:
            assert (PINS / f"{spec.pins}.txt").is_file()
            assert version_of(spec)


# -------------------------------------------------------------------------------------------------------------- table

MACHINE = Machine("a CPU", 2, 8.0, "3.11", "Linux", "abc", "2026-01-01 10:00 UTC", (0.1, 0.1, 0.1))
GOOD = {
    "documents_per_s": 50.0,
    "cpu_ms_per_document": 20.0,
    "repeat_cpu": 0.5,
    "copies": 1.0,
    "query_p50_ms": 5.0,
    "query_p95_ms": 9.0,
    "recall": 1.0,
    "filtered_recall": 1.0,
    "deleted_idle_ms": 3.0,
    "deleted_busy_ms": 4.0,
    "rss_mib": 300.0,
}
OURS = Row("Ours", "commit abc", "HTTP", "hybrid", ours=True, values=GOOD)
THEIRS = Row("Theirs", "1.0", "HTTP", "dense", ours=False, values=GOOD)


def cells(rows: list[Row], title: str) -> dict[str, str]:
    """By the column's title, of one row."""
    table = [line for line in as_markdown(rows, [MACHINE]).splitlines() if line.startswith("| ")]
    head, *body = [[each.strip() for each in line.strip("|").split("|")] for line in table]
    (mine,) = [line for line in body if line[0].startswith(title)]
    return dict(zip(head, mine, strict=True))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.key)
def test_a_lost_column_is_marked_and_listed_with_both_values(column) -> None:  # type: ignore[no-untyped-def]
    better = GOOD[column.key] * (1.5 if column.more_is_better else 0.5)
    rows = [OURS, replace(THEIRS, values={**GOOD, column.key: better})]
    assert cells(rows, "Ours")[column.title].endswith("▼")
    assert cells(rows, "Theirs")[column.title].startswith("**")
    (line,) = losses(rows)
    assert line.startswith(f"{column.title}: Theirs ")
    assert line in as_markdown(rows, [MACHINE])


def test_what_is_equal_as_written_is_no_defeat_and_a_better_value_of_ours_is_none() -> None:
    slower = {**GOOD, "query_p50_ms": 5.04, "rss_mib": 400.0}
    rows = [OURS, replace(THEIRS, values=slower)]
    assert losses(rows) == []
    assert "We are behind in no column." in as_markdown(rows, [MACHINE])
    assert cells(rows, "Theirs")["query p50"] == "**5.0 ms**"
    assert cells(rows, "Theirs")["memory"] == "400 MiB"


def test_where_only_others_have_a_value_we_are_behind() -> None:
    rows = [replace(OURS, values={**GOOD, "deleted_busy_ms": None}), THEIRS]
    assert cells(rows, "Ours")["deleted while ingesting"] == "no sample ▼"
    assert losses(rows) == ["deleted while ingesting: Theirs 4.0 ms, ours has no value"]


def test_a_failed_peer_stays_a_row_with_its_reason_and_leads_nowhere() -> None:
    failed = replace(THEIRS, values={}, failed="its process ended: a | b")
    table = as_markdown([OURS, failed], [MACHINE])
    assert "no figures: its process ended: a / b" in table
    assert losses([OURS, failed]) == []
    widths = {line.count("|") for line in table.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_our_own_failure_is_no_victory() -> None:
    rows = [replace(OURS, values={}, failed="did not start"), THEIRS]
    assert len(losses(rows)) == len(COLUMNS)


def test_a_peer_without_filters_says_so_and_troubles_are_told() -> None:
    rows = [
        OURS,
        replace(THEIRS, filters=False, late=3, deletions=9, others_cores=1.25, troubles=("delete: still busy",)),
    ]
    mine = cells(rows, "Theirs")
    assert "(has no filter)" in mine["filtered recall@10"]
    assert mine["seen after acknowledgement"] == "3 of 9"
    assert mine["others meanwhile"] == "1.2 cores"
    assert cells(rows, "Ours")["others meanwhile"] == "unknown"
    assert "- Theirs: delete: still busy" in as_markdown(rows, [MACHINE])


def test_the_picture_has_a_bar_for_each_value_and_a_word_for_a_failure() -> None:
    rows = [OURS, THEIRS, replace(THEIRS, title="Absent <1>", values={}, failed="away")]
    picture = peers_svg(rows)
    ET.fromstring(picture)
    assert picture.count("Absent &lt;1&gt;") == picture.count("no figures") == 6


def test_the_adapters_need_nothing_of_ours() -> None:
    """They run in environments that have none of our packages."""
    for file in ADAPTERS.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "import dats_common" not in text
        assert "from services" not in text
        assert "from tests" not in text
    assert adapter_process.SETTINGS["HF_HUB_OFFLINE"] == "1"
