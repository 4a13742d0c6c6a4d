"""What is measured of one peer, and in which order. The same for all of them: only the adapter differs."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.figures import percentile
from tests.bench.machine import all_cpu_s, cpu_s, tree
from tests.bench.peers.adapter_process import INGEST_TIMEOUT_S, START_TIMEOUT_S, AdapterProcess, PeerFailed
from tests.bench.peers.workload import LIMIT, Document, Question, Workload, as_json

WARM_DOCUMENTS = 5
WARM_QUESTIONS = 20
VISIBLE_TIMEOUT_S = 120.0
SAMPLED = 20
"""Documents that must be found before ingestion counts as done, the last one among them."""
_QUIET_S, _QUIET_SHARE, _SETTLE_TIMEOUT_S = 1.0, 0.15, 30.0
_WATCH_EVERY_S = 0.1
_MIB, _PAGE = 2**20, os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Measured:
    """What one peer did. Times in seconds, memory in MiB; None where a phase had no sample.

    Attributes:
        recall: share of the questions without a filter whose document is among the first ten.
        filtered_recall: likewise under a filter.
        outside: share of the hits under a filter that the filter should have kept away.
        copies: how often a document is found once it was handed in twice, mean; 1 is right.
        repeat_cpu: CPU of the second time, as a share of what the first took for a document.
        deleted_idle, deleted_busy: from asking to the start of the first query that no longer finds it.
        late_idle, late_busy: how many of them were still found by a query that started after the acknowledgement.
        others_cores: what everything else on the machine used meanwhile, mean: the figures of time are as good as that.
    """

    start_s: float
    documents_per_s: float
    cpu_ms_per_document: float
    query_s: list[float]
    filtered_query_s: list[float]
    recall: float
    filtered_recall: float
    outside: float
    copies: float
    repeat_cpu: float
    deleted_idle_s: list[float]
    late_idle: int
    deleted_busy_s: list[float]
    late_busy: int
    rss_mib: float
    peak_rss_mib: float
    troubles: list[str] = field(default_factory=list)
    others_cores: float | None = None


def measure(adapter: AdapterProcess, workload: Workload, folder: Path) -> Measured:
    """Raises: PeerFailed: it could not be measured to the end."""
    everything, ours = all_cpu_s(), cpu_s(tree(os.getpid()))
    started = time.perf_counter()
    roots: list[int] = adapter.ask("start", folder=str(folder), timeout_s=START_TIMEOUT_S).result
    start_s = time.perf_counter() - started
    with _watching(roots) as memory:
        _ingest(adapter, workload.backlog[:WARM_DOCUMENTS])
        _settle(roots)
        first_cpu, ingest_s = _cpu_of(roots, lambda: _ingest(adapter, workload.documents))
        asked = _ask(adapter, workload.plain)
        filtered = _ask(adapter, workload.filtered)
        rss = _rss(roots)
        repeat_cpu, _ = _cpu_of(roots, lambda: _hand_in(adapter, workload.repeated))
        copies = statistics.fmean(_found(adapter, each).count(each.id) for each in workload.repeated)
        idle = _delete(adapter, workload.idle)
        busy = _delete_meanwhile(adapter, workload.busy, workload.backlog[WARM_DOCUMENTS:])
        others = (all_cpu_s() - everything) - (cpu_s(tree(os.getpid())) - ours)
        elapsed_s = time.perf_counter() - started
    keeps = {each.id: each for each in (*workload.documents, *workload.backlog)}
    return Measured(
        start_s=start_s,
        documents_per_s=len(workload.documents) / ingest_s,
        cpu_ms_per_document=first_cpu / len(workload.documents) * 1e3,
        query_s=asked.seconds,
        filtered_query_s=filtered.seconds,
        recall=recall(workload.plain, asked.hits),
        filtered_recall=recall(workload.filtered, filtered.hits),
        outside=outside(workload.filtered, filtered.hits, keeps),
        copies=copies,
        repeat_cpu=(repeat_cpu / len(workload.repeated)) / (first_cpu / len(workload.documents)),
        deleted_idle_s=idle.seconds,
        late_idle=idle.late,
        deleted_busy_s=busy.seconds,
        late_busy=busy.late,
        rss_mib=rss,
        peak_rss_mib=max(memory),
        troubles=[*idle.troubles, *busy.troubles],
        others_cores=max(0.0, others / elapsed_s),
    )


# ------------------------------------------------------------------------------------------------------- ingestion


def _ingest(adapter: AdapterProcess, documents: Sequence[Document]) -> float:
    """Seconds until a query finds what was handed in, whatever the peer says before."""
    started = time.perf_counter()
    _hand_in(adapter, documents)
    step = max(1, len(documents) // SAMPLED)
    for each in documents[::-step]:
        while each.id not in _found(adapter, each):
            if time.perf_counter() - started > INGEST_TIMEOUT_S:
                raise PeerFailed(f"{each.id} was never found")
            time.sleep(0.01)
    return time.perf_counter() - started


def _hand_in(adapter: AdapterProcess, documents: Sequence[Document]) -> float:
    """Seconds until the peer says that it is done."""
    return adapter.ask("ingest", documents=as_json(documents), timeout_s=INGEST_TIMEOUT_S).seconds


def _found(adapter: AdapterProcess, document: Document) -> list[str]:
    """What a query with the document's own text finds."""
    hits: list[str] = adapter.ask("query", text=document.text, where={}, limit=LIMIT).result
    return hits


def _cpu_of(roots: Sequence[int], work: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds until everything is quiet again, and what the work returns."""
    before = _cpu_s(roots)
    seconds = work()
    _settle(roots)
    return _cpu_s(roots) - before, seconds


def _settle(roots: Sequence[int]) -> None:
    """Until the processes do next to nothing for a second; some are never quiet, so not for ever."""
    give_up_at = time.monotonic() + _SETTLE_TIMEOUT_S
    while time.monotonic() < give_up_at:
        before = _cpu_s(roots)
        time.sleep(_QUIET_S)
        if _cpu_s(roots) - before < _QUIET_SHARE * _QUIET_S:
            return


# --------------------------------------------------------------------------------------------------------- questions


@dataclass(frozen=True, slots=True)
class Asked:
    """One entry for each question."""

    seconds: list[float]
    hits: list[list[str]]


def _ask(adapter: AdapterProcess, questions: Sequence[Question]) -> Asked:
    """One after the other, as one client does, after some that do not count: of other words, because a peer may know
    what it was asked before."""
    for each in questions[:WARM_QUESTIONS]:
        backwards = " ".join(reversed(each.text.split()))
        adapter.ask("query", text=backwards, where=each.where, limit=LIMIT)
    answers = [adapter.ask("query", text=each.text, where=each.where, limit=LIMIT) for each in questions]
    return Asked([each.seconds for each in answers], [each.result for each in answers])


def recall(questions: Sequence[Question], hits: Sequence[Sequence[str]]) -> float:
    """Share of the questions whose document is among the hits."""
    return statistics.fmean(each.relevant in found[:LIMIT] for each, found in zip(questions, hits, strict=True))


def outside(questions: Sequence[Question], hits: Sequence[Sequence[str]], documents: dict[str, Document]) -> float:
    """Share of the hits that have other metadata than was asked for; 0 without hits."""
    seen = [
        all(getattr(documents[found], name) == value for name, value in each.where.items())
        for each, several in zip(questions, hits, strict=True)
        for found in several
    ]
    return 1 - statistics.fmean(seen) if seen else 0.0


# --------------------------------------------------------------------------------------------------------- deletions


@dataclass(slots=True)
class Deleted:
    """One entry for each deletion that came to an end; `late` counts those that were seen after the acknowledgement."""

    seconds: list[float] = field(default_factory=list)
    late: int = 0
    troubles: list[str] = field(default_factory=list)


def _delete(adapter: AdapterProcess, victims: Sequence[Document], *, until: threading.Event | None = None) -> Deleted:
    """One after the other; with `until`, only as long as that has not come."""
    deleted = Deleted()
    for each in victims:
        if until is not None and until.is_set():
            break
        try:
            _delete_one(adapter, each, deleted)
        except PeerFailed as error:
            deleted.troubles.append(str(error))
            break
    return deleted


def _delete_one(adapter: AdapterProcess, victim: Document, deleted: Deleted) -> None:
    if victim.id not in _found(adapter, victim):
        raise PeerFailed(f"delete: {victim.id} was not found before it was deleted")
    asked = time.perf_counter()
    adapter.ask("delete", document_id=victim.id)
    seen = 0
    while True:
        started = time.perf_counter()
        if victim.id not in _found(adapter, victim):
            break
        seen += 1
        if started - asked > VISIBLE_TIMEOUT_S:
            raise PeerFailed(f"delete: still found after {VISIBLE_TIMEOUT_S:.0f} s")
    deleted.seconds.append(started - asked)
    deleted.late += bool(seen)


def _delete_meanwhile(adapter: AdapterProcess, victims: Sequence[Document], backlog: Sequence[Document]) -> Deleted:
    """While the backlog is ingested, as long as that takes."""
    done = threading.Event()
    troubles: list[str] = []

    def ingest() -> None:
        try:
            _hand_in(adapter, backlog)
        except PeerFailed as error:
            troubles.append(f"while documents were deleted, {error}")
        finally:
            done.set()

    ingesting = threading.Thread(target=ingest, name="ingesting")
    ingesting.start()
    try:
        deleted = _delete(adapter, victims, until=done)
    finally:
        ingesting.join()
    deleted.troubles += troubles
    return deleted


# --------------------------------------------------------------------------------------------------------- processes


def _living(roots: Sequence[int]) -> list[int]:
    return [pid for root in roots for pid in tree(root)]


def _cpu_s(roots: Sequence[int]) -> float:
    try:
        return cpu_s(set(_living(roots)))
    except FileNotFoundError as error:
        raise PeerFailed("one of its processes ended") from error


def _rss(roots: Sequence[int]) -> float:
    """MiB that the processes hold; what they share counts once for each."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in set(_living(roots))]
    return sum(pages) * _PAGE / _MIB


@contextmanager
def _watching(roots: Sequence[int]) -> Iterator[list[float]]:
    """Memory ten times a second, until left."""
    seen: list[float] = [0.0]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(_WATCH_EVERY_S):
            try:
                seen.append(_rss(roots))
            except (FileNotFoundError, ProcessLookupError):
                continue  # One of them ended while it was looked at.

    watcher = threading.Thread(target=watch, name="memory")
    watcher.start()
    try:
        yield seen
    finally:
        stop.set()
        watcher.join()


def summary(measured: Measured) -> dict[str, Any]:
    """What the table shows, with the names that its columns have."""
    return {
        "documents_per_s": measured.documents_per_s,
        "cpu_ms_per_document": measured.cpu_ms_per_document,
        "query_p50_ms": percentile(measured.query_s, 50) * 1e3,
        "query_p95_ms": percentile(measured.query_s, 95) * 1e3,
        "filtered_p95_ms": percentile(measured.filtered_query_s, 95) * 1e3,
        "recall": measured.recall,
        "filtered_recall": measured.filtered_recall,
        "copies": measured.copies,
        "repeat_cpu": measured.repeat_cpu,
        "deleted_idle_ms": _middle_ms(measured.deleted_idle_s),
        "deleted_busy_ms": _middle_ms(measured.deleted_busy_s),
        "rss_mib": measured.rss_mib,
        "peak_rss_mib": measured.peak_rss_mib,
    }


def _middle_ms(seconds: Sequence[float]) -> float | None:
    return percentile(seconds, 50) * 1e3 if seconds else None
