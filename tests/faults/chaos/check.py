"""`python -m tests.faults.chaos.check HISTORY [--snapshot FILE]`: judges a run by its history and its end alone.

It shares no code with the service and asks no server. Exit status 1: a promise was broken, or the run showed nothing.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.chaos.history import Record, read_history
from tests.faults.chaos.oracle import NOW, Fate, Outcome, Taint, Version, outcomes

MOST_SHOWN = 10

MAY_END_WITH = frozenset({69, 70})
"""Statuses with which a process may end by itself: something it needs was away at its start, or its watchdog ended it.
Whoever runs it starts it again."""


@dataclass(frozen=True, slots=True)
class Look:
    """An answered query: what it showed as (artifact, version, chunk)."""

    started: float
    ended: float
    replica: int
    asked: frozenset[str]
    seen: tuple[tuple[str, int, int], ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Candidates:
    """An unguarded look at the index: (artifact, generation)."""

    started: float
    seen: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Fallen:
    """From `since` on it is known that versions placed up to `through` must not be shown."""

    since: float
    through: float


@dataclass
class Sent:
    """The events of one artifact: those that were confirmed, and those of which nobody knows."""

    versions: dict[int, Version] = field(default_factory=dict)
    taints: dict[str, Taint] = field(default_factory=dict)
    unresolved: dict[str, Version | Taint] = field(default_factory=dict)

    def place(self, number: int) -> float:
        """Of a version, confirmed or not; the present where it gave no time or is not known."""
        among = [*self.versions.values(), *(v for v in self.unresolved.values() if isinstance(v, Version))]
        return next((version.at for version in among if version.number == number), NOW)


@dataclass
class Told:
    """A history, in the terms of the promise."""

    begin: Record
    sent: dict[str, Sent]
    poison: set[str]
    looks: list[Look]
    unguarded: list[Candidates]
    fallen: dict[str, list[Fallen]]
    announced: set[tuple[str, int]]
    answered: set[str]
    of_generation: dict[int, tuple[str, float]]
    counts: Counter[str]
    faults: Counter[str]
    ended: list[tuple[str, int]]
    rested: bool


@dataclass
class Judgement:
    """What a run showed: violations by kind, and figures."""

    violations: dict[str, list[str]]
    figures: dict[str, Any]

    @property
    def is_good(self) -> bool:
        return not any(self.violations.values())


# ------------------------------------------------------------------------------------------------------------ reading


def told(records: Iterable[Record]) -> Told:
    """Read a history."""
    begin: Record = {}
    found = Told(
        {}, defaultdict(Sent), set(), [], [], defaultdict(list), set(), set(), {}, Counter(), Counter(), [], False
    )
    open_operations: dict[int, Record] = {}
    doubtful: dict[str, Record] = {}
    confirmed: set[str] = set()
    for record in records:
        name, phase = record["op"], record["ph"]
        if phase == "invoke":
            open_operations[record["n"]] = record
            if name == "send":
                doubtful[record["id"]] = record  # Until it is confirmed it may have arrived.
            continue
        found.counts[f"{name} {phase}"] += 1
        if phase == "info":
            if name == "begin":
                begin = record
            _read_note(found, record, origin=begin.get("origin_us", 0))
            continue
        started = open_operations.pop(record["n"])
        if name == "send" and phase == "ok":
            _read_send(found, started, record)
            confirmed.add(started["id"])
        elif name == "query" and phase == "ok":
            seen = tuple((artifact, version, chunk) for artifact, version, chunk in record["seen"])
            asked = frozenset(started["ids"])
            found.looks.append(Look(started["t"], record["t"], started["replica"], asked, seen, started["final"]))
        elif name == "candidates" and phase == "ok":
            seen_there = tuple((artifact, generation) for artifact, generation in record["seen"])
            found.unguarded.append(Candidates(started["t"], seen_there))
    for event_id, started in doubtful.items():
        if event_id not in confirmed:
            found.sent[started["a"]].unresolved[event_id] = _event(started)
    found.begin = begin
    return found


def _read_note(found: Told, record: Record, *, origin: int) -> None:
    match record["op"]:
        case "fault":
            found.faults[record["kind"]] += 1
        case "ended":
            found.ended.append((record["what"], record["status"]))
        case "rest":
            found.rested = record["reached"]
        case "heard" if record["event"] == "embedding.invalidated":
            for artifact in record["a"]:
                found.answered.add(artifact)
                found.fallen[artifact].append(Fallen(record["t"], record["through"] - origin))
        case "heard" if record["event"] == "embedding.completed":
            (artifact,) = record["a"]
            found.announced.add((artifact, record["generation"]))
            # The first one: an unchanged version keeps its generation.
            found.of_generation.setdefault(record["generation"], (artifact, record["version"] - origin))


def _read_send(found: Told, started: Record, ended: Record) -> None:
    event_id, artifact = started["id"], started["a"]
    if started["kind"] == "poison":
        found.poison.add(event_id)
        return
    event = _event(started)
    if isinstance(event, Version):
        found.sent[artifact].versions[event.number] = event
        return
    found.sent[artifact].taints[event_id] = event
    if started["kind"] == "http_taint":
        found.fallen[artifact].append(Fallen(ended["t"], NOW))  # Every version of this artifact is of the past.


def _event(started: Record) -> Version | Taint:
    at = NOW if started["at"] is None else float(started["at"])
    return Version(started["v"], at) if started["kind"] == "validated" else Taint(at)


# ------------------------------------------------------------------------------------------------------------ judging


def judge(found: Told, snapshot: Mapping[str, Any]) -> Judgement:
    """Every promise by name, and whether the run was an attack at all."""
    judged = _Judge(found, snapshot)
    violations = {
        "stale": list(judged.stale()),
        "lost": list(judged.lost()),
        "resurrected": list(judged.resurrected()),
        "not held in quarantine": list(judged.not_held()),
        "not shown at the end": list(judged.not_shown()),
        "shown twice": list(judged.shown_twice()),
        "an older version came back": list(judged.went_back()),
        "dead letters": list(judged.dead_letters()),
        "drift": list(judged.drift()),
        "not announced": list(judged.not_announced()),
        "left over": list(judged.left_over()),
        "crashed": list(judged.crashed()),
    }
    figures = judged.figures()
    violations["showed nothing"] = [
        f"no {name}" for name in ("checked results", "unguarded stale") if not figures[name]
    ]
    return Judgement(violations, figures)


class _Judge:
    def __init__(self, found: Told, snapshot: Mapping[str, Any]) -> None:
        self._told = found
        self._skew = found.begin["skew_us"]
        self._generations: dict[int, tuple[str, int]] = {
            int(generation): (artifact, version) for generation, (artifact, version) in snapshot["generations"].items()
        }
        self._snapshot = snapshot
        self._live = {artifact: self._generations.get(gen, ("", 0))[1] for artifact, gen in snapshot["live"].items()}
        self._outcomes: dict[str, list[Outcome]] = {
            artifact: list(
                outcomes(
                    list(sent.versions.values()),
                    list(sent.taints.values()),
                    unresolved=list(sent.unresolved.values()),
                    skew=self._skew,
                )
            )
            for artifact, sent in found.sent.items()
        }

    # -- readers

    def stale(self) -> Iterator[str]:
        """A query that started when the taint was known to be done shows what it covers."""
        for look in self._told.looks:
            for artifact, version, _ in look.seen:
                if fallen := self._fell(artifact, self._place(artifact, version), before=look.started):
                    late_ms = (look.started - fallen.since) * 1e3
                    yield f"{artifact} v{version} by replica {look.replica}, asked {late_ms:.1f} ms after its taint"

    def shown_twice(self) -> Iterator[str]:
        """One chunk twice, or two versions of one artifact, in one answer; or a text that names another artifact."""
        for look in self._told.looks:
            versions: dict[str, set[int]] = defaultdict(set)
            for artifact, version, _ in look.seen:
                versions[artifact].add(version)
            for (artifact, chunk), times in Counter((a, c) for a, _, c in look.seen).items():
                if times > 1:
                    yield f"chunk {chunk} of {artifact}, {times} times"
            for artifact, numbers in versions.items():
                if len(numbers) > 1 or 0 in numbers:
                    yield f"{artifact} as versions {sorted(numbers)}"

    def went_back(self) -> Iterator[str]:
        """A query shows an older version than one that had ended before it started."""
        ended: list[tuple[float, int]] = []
        newest: dict[str, tuple[float, int]] = {}
        looks = sorted(self._told.looks, key=lambda look: look.started)
        for number, look in enumerate(looks):
            while ended and ended[0][0] < look.started:
                for artifact, version, _ in looks[heapq.heappop(ended)[1]].seen:
                    if not version:
                        continue  # unreadable: told elsewhere
                    place = (self._place(artifact, version), version)
                    newest[artifact] = max(newest.get(artifact, place), place)
            for artifact, version in {(artifact, version) for artifact, version, _ in look.seen if version}:
                if artifact in newest and self._place(artifact, version) < newest[artifact][0]:
                    yield f"{artifact} v{version} by replica {look.replica}, after v{newest[artifact][1]} was shown"
            heapq.heappush(ended, (look.ended, number))

    def not_shown(self) -> Iterator[str]:
        """What is live must be found on every replica by the last look."""
        shown: dict[int, set[tuple[str, int]]] = defaultdict(set)
        asked: dict[int, set[str]] = defaultdict(set)
        for look in self._told.looks:
            if look.final:
                asked[look.replica] |= look.asked
                shown[look.replica] |= {(artifact, version) for artifact, version, _ in look.seen}
        if not asked:
            yield "there was no last look"
        for replica, ids in asked.items():
            for artifact in sorted(self._told.sent.keys() - ids):
                yield f"{artifact}: replica {replica} was not asked"
            for artifact, version in self._live.items():
                if artifact in ids and (artifact, version) not in shown[replica]:
                    yield f"{artifact} v{version} on replica {replica}"

    # -- the end

    def lost(self) -> Iterator[str]:
        """A version that must be live is not."""
        for artifact, possible in self._outcomes.items():
            wanted = {each.live for each in possible}
            if self._live.get(artifact) not in wanted and wanted - {None}:
                yield f"{artifact}: v{self._live.get(artifact)} is live, must be v{sorted(filter(None, wanted))}"

    def resurrected(self) -> Iterator[str]:
        """A version that must not be live is; also what nobody sent."""
        for artifact, version in self._live.items():
            if all(each.live is None for each in self._outcomes.get(artifact, [])):
                yield f"{artifact} v{version} is live"

    def not_held(self) -> Iterator[str]:
        """A version that could not be ordered against a taint is kept for an operator."""
        held = {(artifact, version) for artifact, version in self._snapshot["quarantined"]}
        for artifact, possible in self._outcomes.items():
            for version in set.intersection(*(each.held for each in possible)):
                if (artifact, version) not in held:
                    yield f"{artifact} v{version}"

    def dead_letters(self) -> Iterator[str]:
        """The poison that was sent, and nothing else."""
        there = set(self._snapshot["dead_letters"])
        yield from (f"{each} is missing" for each in sorted(self._told.poison - there))
        yield from (f"{each} should not be there" for each in sorted(there - self._told.poison))

    def drift(self) -> Iterator[str]:
        """The index has the chunks of the live generations, each once, and nothing else."""
        there = Counter((artifact, generation, chunk) for artifact, generation, chunk in self._snapshot["points"])
        wanted = {
            (artifact, generation, chunk)
            for artifact, generation in self._snapshot["live"].items()
            for chunk in range(self._snapshot["chunks"].get(str(generation), 0) or 1)
        }
        yield from (f"{each} is not in the index" for each in sorted(wanted - there.keys()))
        yield from (f"{each} is in the index" for each in sorted(there.keys() - wanted))
        yield from (f"{each} is in the index {times} times" for each, times in there.items() if times > 1)

    def not_announced(self) -> Iterator[str]:
        """Each live generation had its `embedding.completed`, each taint its `embedding.invalidated`."""
        for artifact, generation in self._snapshot["live"].items():
            if (artifact, generation) not in self._told.announced:
                yield f"completed of {artifact}, generation {generation}"
        for artifact, sent in self._told.sent.items():
            if sent.taints and artifact not in self._told.answered:
                yield f"invalidated of {artifact}"

    def left_over(self) -> Iterator[str]:
        """Nothing waits for ever."""
        if not self._told.rested:
            yield "the fleet did not come to rest"
        yield from (f"{count} in {name}" for name, count in self._snapshot["queues"].items() if count)
        yield from (
            f"{self._snapshot[name]} in {name}" for name in ("pending", "outbox_unsent") if self._snapshot[name]
        )

    def crashed(self) -> Iterator[str]:
        """Processes are killed; none ends by itself for a reason that it does not name."""
        yield from (f"{what} with status {status}" for what, status in self._told.ended if status not in MAY_END_WITH)

    # -- figures

    def figures(self) -> dict[str, Any]:
        """What was checked, and how hard the attack was."""
        looks = self._told.looks
        fates = Counter(fate.value for possible in self._outcomes.values() for fate in possible[0].fates.values())
        return {
            "checked results": sum(len(look.seen) for look in looks),
            "tainted artifacts asked for and not shown": sum(self._absent(look) for look in looks),
            "answered queries": len(looks),
            "unguarded stale": sum(self._unguarded_stale(each) for each in self._told.unguarded),
            "unguarded looks": len(self._told.unguarded),
            "versions confirmed": sum(len(sent.versions) for sent in self._told.sent.values()),
            "fates": {fate.value: fates[fate.value] for fate in Fate},
            "unresolved sends": sum(len(sent.unresolved) for sent in self._told.sent.values()),
            "dead letters": sum(self._snapshot["dead_letters"].values()),
            "faults": dict(sorted(self._told.faults.items())),
            "ended by themselves": dict(Counter(f"status {status}" for _, status in self._told.ended)),
            "operations": dict(sorted(self._told.counts.items())),
            "stack traces in logs": sum(self._snapshot.get("stack_traces", {}).values()),
        }

    def _absent(self, look: Look) -> int:
        """Artifacts that were asked for, known to be fallen for good, and rightly not shown."""
        shown = {artifact for artifact, _, _ in look.seen}
        return sum(1 for artifact in look.asked - shown if self._fell(artifact, -math.inf, before=look.started))

    def _unguarded_stale(self, look: Candidates) -> int:
        """Candidates that a service without the guard would have shown although their taint was known to be done."""
        return sum(
            1
            for artifact, generation in set(look.seen)
            if (place := self._place_of(generation)) is not None and self._fell(artifact, place, before=look.started)
        )

    def _place_of(self, generation: int) -> float | None:
        if generation in self._generations:
            return self._place(*self._generations[generation])
        announced = self._told.of_generation.get(generation)
        return announced[1] if announced else None

    def _place(self, artifact: str, version: int) -> float:
        return self._told.sent[artifact].place(version) if artifact in self._told.sent else NOW

    def _fell(self, artifact: str, place: float, *, before: float) -> Fallen | None:
        """A taint that covers this place, known before this time. What gave no time falls to those without one."""
        for fallen in self._told.fallen.get(artifact, ()):
            covers = place <= fallen.through or (place == NOW and self._whole(artifact))
            if fallen.since < before and covers:
                return fallen
        return None

    def _whole(self, artifact: str) -> bool:
        """Artifacts without times are tainted once, for good."""
        return any(taint.at == NOW for taint in self._told.sent[artifact].taints.values())


# ------------------------------------------------------------------------------------------------------------- report


def judge_files(history: Path, snapshot: Path) -> Judgement:
    """Read and judge."""
    return judge(told(read_history(history)), json.loads(snapshot.read_text(encoding="utf-8")))


def report(judged: Judgement, out: Path | None) -> int:
    """Print it, and write it as JSON beside the history. The exit status."""
    for name, value in judged.figures.items():
        print(f"{name}: {value}")
    for kind, cases in judged.violations.items():
        print(f"{'ok      ' if not cases else 'VIOLATED'} {kind}: {len(cases)}")
        for case in cases[:MOST_SHOWN]:
            print(f"         {case}")
    if out is not None:
        told_as = {"good": judged.is_good, "figures": judged.figures, "violations": judged.violations}
        (out / "report.json").write_text(json.dumps(told_as, indent=2) + "\n", encoding="utf-8")
    return 0 if judged.is_good else 1


def main() -> int:
    """Judge a history."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos.check", description=__doc__)
    parser.add_argument("history", type=Path)
    parser.add_argument("--snapshot", type=Path, help="default: snapshot.json beside the history")
    wanted = parser.parse_args()
    snapshot = wanted.snapshot or wanted.history.with_name("snapshot.json")
    return report(judge_files(wanted.history, snapshot), wanted.history.parent)


if __name__ == "__main__":
    sys.exit(main())
