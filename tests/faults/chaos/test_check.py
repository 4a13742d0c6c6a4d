"""The checker itself: good histories pass, and each kind of violation is caught in a history written by hand."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.chaos.check import Judgement, judge, told
from tests.faults.chaos.oracle import NOW, Fate, Taint, Version, outcome

ROOT = Path(__file__).parents[3]
SKEW = 60_000_000
HOUR = 3_600_000_000


class Story:
    """A history and a snapshot as a run writes them: all is well until a test changes something."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self._number = 0
        self.note(0.0, "begin", seed=1, commit="none", origin_us=1000, skew_us=SKEW)
        # a0 stays; a1 is tainted over AMQP, a2 over HTTP; a3 is held; a4 has a second version; a5's taint came first.
        self.validated(1.0, "a0", 1, at=0)
        self.validated(1.1, "a1", 1, at=0)
        self.validated(1.2, "a2", 1, at=0)
        self.taint(1.3, "a3", at=HOUR)
        self.validated(1.4, "a3", 1, at=HOUR + SKEW // 2)
        self.validated(1.5, "a4", 1, at=0)
        self.validated(1.6, "a4", 2, at=HOUR)
        self.taint(1.7, "a5", at=HOUR)
        self.validated(1.8, "a5", 1, at=0)
        self.send(1.9, "poison", "p1", "p1")
        for generation, (artifact, at) in enumerate(
            [("a0", 0), ("a1", 0), ("a2", 0), ("a4", 0), ("a4", HOUR)], start=1
        ):
            self.completed(2.0, artifact, generation, at=at)
        self.query(2.1, 2.2, [("a0", 1, 0), ("a1", 1, 0), ("a2", 1, 0), ("a4", 1, 0)])
        self.query(2.3, 2.4, [("a0", 1, 0), ("a1", 1, 0), ("a2", 1, 0), ("a4", 2, 0)])
        for artifact in ("a3", "a5"):
            self.invalidated(2.5, artifact, through=HOUR + SKEW)
        self.taint(3.0, "a1", at=HOUR)
        self.query(3.05, 4.5, [("a0", 1, 0), ("a1", 1, 0)])  # Began before the taint was known: no violation.
        self.invalidated(3.1, "a1", through=HOUR + SKEW)
        self.send(3.2, "http_taint", "a2", "a2-h", ended=3.3)
        self.invalidated(3.4, "a2", through=100 * HOUR)
        self.candidates(3.5, [("a0", 1), ("a1", 2), ("a2", 3)])
        self.note(4.0, "ended", what="writer-0", status=69)
        self.note(4.1, "ended", what="writer-0", status=70)
        self.note(5.0, "rest", reached=True)
        self.query(6.0, 6.1, [("a0", 1, 0), ("a4", 2, 0)], replica=0, final=True)
        self.query(6.2, 6.3, [("a0", 1, 0), ("a4", 2, 0)], replica=1, final=True)
        self.snapshot: dict[str, Any] = {
            "generations": {"1": ["a0", 1], "2": ["a1", 1], "3": ["a2", 1], "4": ["a4", 1], "5": ["a4", 2]},
            "live": {"a0": 1, "a4": 5},
            "chunks": {"1": 1, "5": 1},
            "quarantined": [["a3", 1]],
            "points": [["a0", 1, 0], ["a4", 5, 0]],
            "dead_letters": {"p1": 1},
            "queues": {"rag-service-events": 0},
            "pending": 0,
            "outbox_unsent": 0,
        }

    def write(self, t: float, name: str, phase: str, **fields: Any) -> None:
        self.records.append({"t": t, "w": "w", "op": name, "ph": phase, **fields})

    def note(self, t: float, name: str, **fields: Any) -> None:
        self.write(t, name, "info", **fields)

    def operation(self, started: float, ended: float, name: str, phase: str, asked: Any, answered: Any) -> None:
        self._number += 1
        self.write(started, name, "invoke", n=self._number, **asked)
        self.write(ended, name, phase, n=self._number, **answered)

    def send(
        self,
        t: float,
        kind: str,
        artifact: str,
        event_id: str,
        *,
        version: int = 0,
        at: int | None = None,
        ended: float | None = None,
        phase: str = "ok",
    ) -> None:
        asked = {"id": event_id, "kind": kind, "a": artifact, "v": version, "at": at, "copy": False}
        self.operation(t, ended or t, "send", phase, asked, {})

    def validated(self, t: float, artifact: str, version: int, *, at: int | None, phase: str = "ok") -> None:
        self.send(t, "validated", artifact, f"{artifact}-v{version}", version=version, at=at, phase=phase)

    def taint(self, t: float, artifact: str, *, at: int | None, phase: str = "ok") -> None:
        self.send(t, "taint", artifact, f"{artifact}-t", at=at, phase=phase)

    def heard(self, t: float, event: str, artifact: str, **fields: Any) -> None:
        self.note(t, "heard", event=event, a=[artifact], **fields)

    def invalidated(self, t: float, artifact: str, *, through: int) -> None:
        self.heard(t, "embedding.invalidated", artifact, through=1000 + through)

    def completed(self, t: float, artifact: str, generation: int, *, at: int) -> None:
        self.heard(t, "embedding.completed", artifact, version=1000 + at, generation=generation)

    def query(
        self, started: float, ended: float, seen: list[tuple[str, int, int]], *, replica: int = 0, final: bool = False
    ) -> None:
        asked = {"replica": replica, "ids": [f"a{n}" for n in range(6)], "final": final}
        self.operation(started, ended, "query", "ok", asked, {"seen": [list(each) for each in seen]})

    def candidates(self, t: float, seen: list[tuple[str, int]]) -> None:
        self.operation(t, t, "candidates", "ok", {}, {"seen": [list(each) for each in seen]})

    def judged(self) -> Judgement:
        return judge(told(self.records), self.snapshot)

    def broken(self) -> set[str]:
        return {kind for kind, cases in self.judged().violations.items() if cases}


def test_a_good_history_passes() -> None:
    judged = Story().judged()
    assert not any(judged.violations.values())
    assert judged.is_good


def test_results_refused_results_and_what_no_guard_would_have_hidden_are_counted() -> None:
    figures = Story().judged().figures
    assert figures["checked results"] == 14
    assert figures["unguarded stale"] == 2
    # Both last looks asked for a1, a2, a3 and a5; the query that began at 3.05 knew of a3 and a5 alone.
    assert figures["tainted artifacts asked for and not shown"] == 2 * 4 + 2
    assert figures["fates"] == {"live": 2, "superseded": 1, "tainted": 3, "quarantined": 1}


# ------------------------------------------------------------------------------------------------------- violations


def shows_after_event(story: Story) -> None:
    story.query(3.11, 3.2, [("a1", 1, 0)])


def shows_after_call(story: Story) -> None:
    story.query(3.31, 3.4, [("a2", 1, 0)])


def shows_version_within_skew(story: Story) -> None:
    story.query(2.6, 2.7, [("a3", 1, 0)])


def loses(story: Story) -> None:
    del story.snapshot["live"]["a0"]
    story.snapshot["points"].remove(["a0", 1, 0])


def keeps_the_older(story: Story) -> None:
    story.snapshot["live"]["a4"] = 4
    story.snapshot["chunks"] = {"1": 1, "4": 1}
    story.snapshot["points"] = [["a0", 1, 0], ["a4", 4, 0]]
    for record in story.records[-3:]:
        record["seen"] = [["a0", 1, 0], ["a4", 1, 0]] if "seen" in record else None


def resurrects(story: Story) -> None:
    story.snapshot["live"]["a1"] = 2
    story.snapshot["points"].append(["a1", 2, 0])


def forgets_what_it_held(story: Story) -> None:
    story.snapshot["quarantined"] = []


def does_not_show(story: Story) -> None:
    story.records[-1]["seen"] = [["a4", 2, 0]]


def does_not_look(story: Story) -> None:
    story.records = [record for record in story.records if not record.get("final")]
    numbers = {record["n"] for record in story.records if record["ph"] == "invoke"}
    story.records = [record for record in story.records if record.get("n", -1) in numbers or "n" not in record]


def shows_a_chunk_twice(story: Story) -> None:
    story.query(2.6, 2.7, [("a0", 1, 0), ("a0", 1, 0)])


def shows_two_versions(story: Story) -> None:
    story.query(2.15, 2.25, [("a4", 1, 0), ("a4", 2, 1)])


def shows_what_cannot_be_read(story: Story) -> None:
    story.query(2.6, 2.7, [("a0", 0, 0)])


def goes_back(story: Story) -> None:
    story.query(2.6, 2.7, [("a4", 1, 0)], replica=1)


def buries_a_good_event(story: Story) -> None:
    story.snapshot["dead_letters"]["a0-v1"] = 1


def loses_a_dead_letter(story: Story) -> None:
    story.snapshot["dead_letters"] = {}


def leaves_a_dead_point(story: Story) -> None:
    story.snapshot["points"].append(["a1", 2, 0])


def misses_a_point(story: Story) -> None:
    story.snapshot["chunks"]["1"] = 2


def has_a_point_twice(story: Story) -> None:
    story.snapshot["points"].append(["a0", 1, 0])


def never_says_completed(story: Story) -> None:
    story.records = [record for record in story.records if record.get("generation") != 5]


def never_says_invalidated(story: Story) -> None:
    story.records = [r for r in story.records if r.get("event") != "embedding.invalidated" or r["a"] != ["a5"]]


def keeps_something_waiting(story: Story) -> None:
    story.snapshot["queues"]["rag-service-events"] = 1


def keeps_an_event_unsent(story: Story) -> None:
    story.snapshot["outbox_unsent"] = 1


def never_rests(story: Story) -> None:
    next(record for record in story.records if record["op"] == "rest")["reached"] = False


def crashes(story: Story) -> None:
    story.note(5.0, "ended", what="writer-1", status=1)


def never_was_dangerous(story: Story) -> None:
    story.records = [record for record in story.records if record["op"] != "candidates"]


@pytest.mark.parametrize(
    ("change", "caught"),
    [
        (shows_after_event, {"stale"}),
        (shows_after_call, {"stale"}),
        (shows_version_within_skew, {"stale"}),
        (loses, {"lost"}),
        (keeps_the_older, {"lost", "an older version came back"}),
        (resurrects, {"resurrected", "not shown at the end"}),
        (forgets_what_it_held, {"not held in quarantine"}),
        (does_not_show, {"not shown at the end"}),
        (does_not_look, {"not shown at the end"}),
        (shows_a_chunk_twice, {"shown twice"}),
        (shows_two_versions, {"shown twice"}),
        (shows_what_cannot_be_read, {"shown twice"}),
        (goes_back, {"an older version came back"}),
        (buries_a_good_event, {"dead letters"}),
        (loses_a_dead_letter, {"dead letters"}),
        (leaves_a_dead_point, {"drift"}),
        (misses_a_point, {"drift"}),
        (has_a_point_twice, {"drift"}),
        (never_says_completed, {"not announced"}),
        (never_says_invalidated, {"not announced"}),
        (keeps_something_waiting, {"left over"}),
        (keeps_an_event_unsent, {"left over"}),
        (never_rests, {"left over"}),
        (crashes, {"crashed"}),
        (never_was_dangerous, {"showed nothing"}),
    ],
)
def test_each_violation_is_caught_and_called_by_its_name(change: Callable[[Story], None], caught: set[str]) -> None:
    story = Story()
    change(story)
    assert story.broken() == caught


# ------------------------------------------------------------------------------------------------ what nobody confirmed


@pytest.mark.parametrize("arrived", [False, True])
def test_a_send_that_nobody_confirmed_may_have_worked_or_not(arrived: bool) -> None:
    story = Story()
    story.validated(2.0, "a0", 2, at=2 * HOUR, phase="unknown")
    if arrived:
        story.snapshot["generations"]["6"] = ["a0", 2]
        story.snapshot["live"]["a0"] = 6
        story.snapshot["chunks"]["6"] = 1
        story.snapshot["points"][0] = ["a0", 6, 0]
        story.completed(2.0, "a0", 6, at=2 * HOUR)
        for record in story.records:
            if record["t"] > 6 and "seen" in record:
                record["seen"] = [["a0", 2, 0], ["a4", 2, 0]]
    assert story.broken() == set()


def test_an_unconfirmed_send_excuses_no_loss() -> None:
    story = Story()
    story.validated(2.0, "a0", 2, at=2 * HOUR, phase="unknown")
    loses(story)
    assert story.broken() == {"lost"}


def test_a_failed_query_shows_nothing_and_proves_nothing() -> None:
    story = Story()
    story.operation(4.0, 4.1, "query", "unknown", {"replica": 0, "ids": ["a1"], "final": False}, {})
    assert story.broken() == set()


def test_a_query_from_before_the_taint_may_show_it_however_late_it_ends() -> None:
    story = Story()
    story.query(3.09, 60.0, [("a1", 1, 0)])
    assert story.broken() == set()


def test_content_without_a_time_falls_for_good() -> None:
    story = Story()
    story.validated(1.0, "a6", 1, at=None)
    story.taint(2.0, "a6", at=None)
    story.invalidated(2.2, "a6", through=50 * HOUR)
    story.query(2.3, 2.4, [("a6", 1, 0)])
    assert story.broken() == {"stale", "not shown at the end"}  # Nobody asked for it in the last look, either.


# -------------------------------------------------------------------------------------------------------- the oracle


@pytest.mark.parametrize(
    ("versions", "taints", "fates"),
    [
        ([(1, 0)], [], {1: Fate.LIVE}),
        ([(1, 0), (2, 5)], [], {1: Fate.SUPERSEDED, 2: Fate.LIVE}),
        ([(1, 10)], [10], {1: Fate.TAINTED}),
        ([(1, 11)], [10], {1: Fate.QUARANTINED}),
        ([(1, 10 + SKEW)], [10], {1: Fate.QUARANTINED}),
        ([(1, 11 + SKEW)], [10], {1: Fate.LIVE}),
        ([(1, 0), (2, 11 + SKEW)], [10], {1: Fate.TAINTED, 2: Fate.LIVE}),
        ([(1, 12), (2, 11 + SKEW)], [10], {1: Fate.SUPERSEDED, 2: Fate.LIVE}),
        ([(1, 0)], [NOW], {1: Fate.TAINTED}),
        ([(1, NOW)], [], {1: Fate.LIVE}),
        ([(1, NOW)], [NOW], {1: Fate.TAINTED}),
    ],
)
def test_the_oracle_decides_by_times_alone(
    versions: list[tuple[int, float]], taints: list[float], fates: dict[int, Fate]
) -> None:
    for order in (versions, versions[::-1]):
        found = outcome([Version(*each) for each in order], [Taint(at) for at in taints], skew=SKEW)
        assert found.fates == fates


# ------------------------------------------------------------------------------------------------------ as a program


@pytest.mark.parametrize("good", [True, False])
def test_the_program_reads_only_files_and_says_by_its_exit_status_whether_all_was_well(
    good: bool, tmp_path: Path
) -> None:
    story = Story()
    if not good:
        shows_after_event(story)
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in story.records))
    (tmp_path / "snapshot.json").write_text(json.dumps(story.snapshot))
    command = [sys.executable, "-m", "tests.faults.chaos.check", str(tmp_path / "history.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (0 if good else 1), done.stderr
    assert ("VIOLATED stale: 1" in done.stdout) is not good
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["good"] is good
    assert written["figures"]["checked results"] == (14 if good else 15)


def test_judging_changes_nothing_of_what_it_read() -> None:
    story = Story()
    before = copy.deepcopy(story.snapshot)
    story.judged()
    assert story.snapshot == before
