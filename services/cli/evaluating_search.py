"""`dats-rag eval`, the retrieval part: each question of a set through `POST /query`, in every mode."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dats_common.clients.rag import RAGClient
from services.cli.console import Bar, Voice
from services.cli.scratch_fleet import PROJECT, Ingested
from services.evaluate.figures import ndcg_at, percentile, recall_at, reciprocal_rank
from services.evaluate.sets import RetrievalSet, Sought, sample
from services.query.reranking import CERTAIN

MODES = ("hybrid", "vector", "keyword")
"""In the order they are asked. Hybrid is first: what the service remembers of a question then helps the others only."""

RERANKED = "reranked"
"""Hybrid, and then a cross-encoder; hybrid itself is asked without."""

TOP_K = 33
MAX_TOKENS = 10_000
"""Ten documents are ranked, each by its best chunk, from what one call gives. 33 chunks of the default model's window
fit the largest budget that a request may name, and the service looks at no more candidates for them than for a default
request: 50 (`query.candidates`) is more than 1.5 times 33."""

RECALL_DEPTH, RANK_DEPTH = 5, 10


@dataclass(frozen=True, slots=True)
class Found:
    """What a question got.

    Attributes:
        documents: ids, the one with the best chunk first; none if the service said that nothing relevant is there.
        latency_ms: as the caller sees it, HTTP included.
        reranked: they are in a cross-encoder's order.
        rerank_reason: why they are not although that was wanted.
    """

    sought: Sought
    documents: tuple[str, ...]
    latency_ms: float
    reranked: bool
    rerank_reason: str | None


def described(of_set: RetrievalSet, ingested: Ingested, *, most: int | None) -> dict[str, Any]:
    """A set's part of the report, before any question was asked."""
    judged, offcorpus = sample(of_set.judged, most), sample(of_set.offcorpus, most)
    return {
        "fingerprint": of_set.fingerprint,
        "domain": of_set.domain,
        "documents": len(of_set.documents),
        "documents_refused": len(ingested.refused),
        "refusals": sorted(set(ingested.refused.values())),
        "chunks": ingested.chunks,
        "ingest_s": round(ingested.seconds, 1),
        "questions": {"judged": len(judged), "offcorpus": len(offcorpus)},
        "questions_of_the_set": {"judged": len(of_set.judged), "offcorpus": len(of_set.offcorpus)},
        "modes": {},
    }


async def ask_all(
    client: RAGClient,
    of_set: RetrievalSet,
    *,
    modes: Iterable[str],
    most: int | None,
    into: dict[str, Any],
    voice: Voice,
) -> None:
    """Every chosen question in every mode, one at a time, so that none waits for another.

    Args:
        into: gets the figures by mode; where this is cancelled, those of what was asked so far, not `complete`.

    Raises: RAGError.
    """
    chosen = [*sample(of_set.judged, most), *sample(of_set.offcorpus, most)]
    by_mode: dict[str, list[Found]] = {}
    for mode in modes:
        found = by_mode.setdefault(mode, [])
        try:
            with voice.progress(f"{of_set.name}: questions asked, {mode}", len(chosen)) as bar:
                await _ask_in(mode, client, chosen, domain=of_set.domain, into=found, bar=bar)
        finally:
            if found:
                into[mode] = {"complete": len(found) == len(chosen), **figures(found)}
            if found and mode == RERANKED:
                into[mode] |= reranking_figures(found, by_mode["hybrid"])


async def _ask_in(
    mode: str, client: RAGClient, chosen: Sequence[Sought], *, domain: str | None, into: list[Found], bar: Bar
) -> None:
    for sought in chosen:
        started = time.perf_counter()
        answer = await client.query(
            sought.text,
            PROJECT,
            domain=domain,
            search_mode="hybrid" if mode == RERANKED else mode,
            rerank=mode == RERANKED,
            top_k=TOP_K,
            max_tokens=MAX_TOKENS,
        )
        latency_ms = (time.perf_counter() - started) * 1e3
        documents = tuple(dict.fromkeys(source.artifact_id for source in answer.sources))
        into.append(Found(sought, documents, latency_ms, answer.reranked, answer.rerank_reason))
        bar.set(len(into))


def reranking_figures(found: Sequence[Found], fused: Sequence[Found]) -> dict[str, float | None]:
    """What the reranker did, over what has documents, and its gain in nDCG@10 where it did anything.

    Args:
        fused: the same questions without it, and perhaps more of them.
    """
    shown = [(each, before) for each, before in zip(found, fused, strict=False) if each.documents]
    read = [(each, before) for each, before in shown if each.reranked and each.sought.relevant]
    return {
        "reranked": _mean(float(each.reranked) for each, _ in shown),
        "in_time": _mean(float(each.rerank_reason in (None, CERTAIN)) for each, _ in shown),
        "ndcg_gain_where_reranked": _mean(_ndcg(each) - _ndcg(before) for each, before in read),
    }


def _ndcg(found: Found) -> float:
    return ndcg_at(found.documents, found.sought.relevant, depth=RANK_DEPTH)


def figures(found: Sequence[Found]) -> dict[str, Any]:
    """Ranking over the judged questions (a refused one counts 0), refusals of both kinds, latency over all."""
    judged = [each for each in found if each.sought.relevant]
    offcorpus = [each for each in found if not each.sought.relevant]
    latencies = [each.latency_ms for each in found]
    return {
        "recall_at_5": _mean(recall_at(each.documents, each.sought.relevant, depth=RECALL_DEPTH) for each in judged),
        "ndcg_at_10": _mean(map(_ndcg, judged)),
        "mrr_at_10": _mean(reciprocal_rank(each.documents, each.sought.relevant, depth=RANK_DEPTH) for each in judged),
        "refused_judged": _mean(float(not each.documents) for each in judged),
        "refused_offcorpus": _mean(float(not each.documents) for each in offcorpus),
        "latency_p50_ms": round(percentile(latencies, 0.5), 1),
        "latency_p95_ms": round(percentile(latencies, 0.95), 1),
    }


def _mean(values: Iterable[float]) -> float | None:
    """To four digits, the last that is worth reading; None of nothing."""
    known = list(values)
    return round(statistics.fmean(known), 4) if known else None


def rows(retrieval: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Of the table, under `COLUMNS`."""
    return [
        (
            name,
            _mode(mode, each),
            *(_cell(each[figure], ".3f") for figure in ("recall_at_5", "ndcg_at_10", "mrr_at_10")),
            *(_cell(each[figure], ".1%") for figure in ("refused_judged", "refused_offcorpus")),
            *(_cell(each[figure], ".0f") for figure in ("latency_p50_ms", "latency_p95_ms")),
        )
        for name, of_set in retrieval.items()
        for mode, each in of_set["modes"].items()
    ]


COLUMNS = (
    "set",
    "mode",
    "recall@5",
    "nDCG@10",
    "MRR@10",
    "refused, judged",
    "refused, off-corpus",
    "p50 ms",
    "p95 ms",
)


def _mode(mode: str, figures: Mapping[str, Any]) -> str:
    notes = [] if figures["complete"] else ["incomplete"]
    if figures.get("reranked") not in (None, 1.0):
        gain = figures["ndcg_gain_where_reranked"]
        notes.append(f"{figures['reranked']:.1%}" + ("" if gain is None else f", there {gain:+.3f} nDCG@10"))
    if figures.get("in_time") not in (None, 1.0):
        notes.append(f"{figures['in_time']:.1%} in time")
    return f"{mode} ({', '.join(notes)})" if notes else mode


def _cell(figure: float | None, how: str) -> str:
    return "" if figure is None else format(figure, how)
