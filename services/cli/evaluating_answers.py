"""`dats-rag eval`, the answers part: what `POST /answer` says to questions with and without an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dats_common.clients.rag import RAGClient
from dats_common.domain.sentences import sentences
from services.cli.console import Voice
from services.cli.scratch_fleet import TIMEOUT_S
from services.evaluate.figures import auroc, brier, calibration_error, percentile, reliability
from services.evaluate.sets import KINDS, Asked, sample

DEFAULT_MOST = 200
"""Questions of each kind: an answer takes its time, where a model writes it."""

_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Judged:
    """A question and what came of it.

    Attributes:
        right: a right answer's text is in what was answered.
        first_right: it is in the first sentence of the best chunk: what an answer without thought would give.
        confidence, answerability: in [0, 1].
    """

    asked: Asked
    right: bool
    first_right: bool
    confidence: float
    answerability: float
    grounded: bool
    action: str
    model: str
    latency_ms: float


async def ask_all(client: RAGClient, asked: Sequence[Asked], *, most: int | None, voice: Voice) -> list[Judged]:
    """At most `most` questions of each kind, evenly spread over the set. Raises: RAGError."""
    wanted = DEFAULT_MOST if most is None else most
    chosen = [each for kind in KINDS for each in sample([item for item in asked if item.kind == kind], wanted)]
    return await _side_by_side("answers asked for", chosen, client, voice)


async def _side_by_side(label: str, asked: Sequence[Asked], client: RAGClient, voice: Voice) -> list[Judged]:
    """The results in the order of the questions, a few at a time."""
    slots = asyncio.Semaphore(_AT_ONCE)
    done = 0
    with voice.progress(label, len(asked)) as bar:

        async def one(item: Asked) -> Judged:
            nonlocal done
            async with slots:
                result = await _ask(client, item)
            done += 1
            bar.set(done)
            return result

        return await asyncio.gather(*map(one, asked))


async def _ask(client: RAGClient, asked: Asked) -> Judged:
    started = time.perf_counter()
    found = await client.answer(asked.text, timeout=TIMEOUT_S)
    latency_ms = (time.perf_counter() - started) * 1e3
    best = await client.query(asked.text, top_k=1, max_tokens=1000)
    text = best.context.partition("\n\n")[2]
    first = text[slice(*sentences(text)[0])] if text.strip() else ""
    return Judged(
        asked=asked,
        right=_holds(found.answer, asked),
        first_right=_holds(first, asked),
        confidence=found.confidence.overall / 100,
        answerability=found.confidence.answerability,
        grounded=found.grounded,
        action=found.action,
        model=found.model_used,
        latency_ms=latency_ms,
    )


def _holds(text: str, asked: Asked) -> bool:
    return any(answer.casefold() in text.casefold() for answer in asked.answers)


def figures(judged: Sequence[Judged]) -> dict[str, Any]:
    """What the answers hold, what is routed, how far confidence tells right from wrong, latency."""
    of_kind = {kind: [each for each in judged if each.asked.kind == kind] for kind in KINDS}
    answerable = of_kind["answerable"]
    confidences, right = [each.confidence for each in judged], [each.right for each in judged]
    latencies = [each.latency_ms for each in judged]
    figures: dict[str, Any] = {
        "model": ", ".join(sorted({each.model for each in judged})),
        "questions": {kind: len(each) for kind, each in of_kind.items()},
        "answer_holds_the_gold_span": _share([each.right for each in answerable]),
        "first_sentence_of_the_best_chunk_holds_it": _share([each.first_right for each in answerable]),
        "answerable_with_a_citation": _share([each.grounded for each in answerable]),
        "routed": {kind: _share([each.action == "ROUTE" for each in items]) for kind, items in of_kind.items()},
        "brier": round(brier(confidences, right), 4),
        "expected_calibration_error": round(calibration_error(reliability(confidences, right)), 4),
        "latency_p50_ms": round(percentile(latencies, 0.5), 1),
        "latency_p95_ms": round(percentile(latencies, 0.95), 1),
        "reliability": [asdict(each) for each in reliability(confidences, right)],
    }
    for kind in ("offcorpus", "adversarial"):
        figures[f"auroc_against_{kind}"] = {
            name: round(
                auroc([getattr(each, name) for each in answerable], [getattr(each, name) for each in of_kind[kind]]), 4
            )
            for name in ("confidence", "answerability")
        }
    return figures


def _share(held: Sequence[bool]) -> float:
    return round(sum(held) / len(held), 4) if held else 0.0
