"""`dats-rag eval`: answers and their grounding on evaluation sets, through a fleet's own HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dats_common.clients.rag import RAGClient
from dats_common.domain.grounding import judge
from dats_common.domain.sentences import sentences
from dats_common.errors import ConfigurationError
from dats_common.settings import load_settings
from services.cli.console import Voice
from services.evaluate.figures import auroc, brier, calibration_error, reliability
from services.evaluate.picture import reliability_svg
from services.evaluate.sets import KINDS, Asked, Document, Said, claims, questions, replies, sample
from services.local import open_fleet

_AT_ONCE = 8
_TIMEOUT_S = 120.0


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


def evaluate(folder: Path, *, out: Path, most: int, voice: Voice) -> None:
    """Every set of `folder` that is known here; `report.json`, `report.md` and pictures go to `out`.

    Args:
        most: questions of each kind, evenly spread over the set.

    Raises: ConfigurationError: there is no set, or one cannot be read.
    """
    report: dict[str, Any] = {}
    for name, read in (("begin_wow", replies), ("scifact", claims)):
        if (folder / name).is_dir():
            report[name] = {"grounding": _grounding(read(folder / name))}
            voice.note(f"{name}: {report[name]}")
    out.mkdir(parents=True, exist_ok=True)
    if (folder / "squad2").is_dir():
        documents, asked = questions(folder / "squad2")
        judged = asyncio.run(_through_a_fleet(documents, asked, most=most, voice=voice))
        report["squad2"] = _answers(judged)
        bins = reliability([each.confidence for each in judged], [each.right for each in judged])
        (out / "reliability.svg").write_text(reliability_svg(bins, title="Confidence and truth, squad2"))
        report["squad2"]["reliability"] = [asdict(each) for each in bins]
    if not report:
        raise ConfigurationError(f"{folder} has none of the sets begin_wow, scifact and squad2")
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    rows = list(_rows(report))
    (out / "report.md").write_text(
        "\n".join(["| set | figure | value |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
    )
    voice.table("Evaluation", ("set", "figure", "value"), rows)
    voice.result(report)


def _grounding(said: Sequence[Said]) -> dict[str, float]:
    judged = [judge(each.text, [each.context]) for each in said]
    unsupported = [1 - each.score for each, item in zip(judged, said, strict=True) if not item.supported]
    supported = [1 - each.score for each, item in zip(judged, said, strict=True) if item.supported]
    agree = sum(each.supported == item.supported for each, item in zip(judged, said, strict=True))
    return {
        "items": len(said),
        "auroc_unsupported": round(auroc(unsupported, supported), 4),
        "accuracy": round(agree / len(said), 4),
    }


def _answers(judged: Sequence[Judged]) -> dict[str, Any]:
    of_kind = {kind: [each for each in judged if each.asked.kind == kind] for kind in KINDS}
    answerable = of_kind["answerable"]
    confidences, right = [each.confidence for each in judged], [each.right for each in judged]
    latencies = sorted(each.latency_ms for each in judged)
    figures: dict[str, Any] = {
        "model": ", ".join(sorted({each.model for each in judged})),
        "questions": {kind: len(each) for kind, each in of_kind.items()},
        "answer_holds_the_gold_span": _share([each.right for each in answerable]),
        "first_sentence_of_the_best_chunk_holds_it": _share([each.first_right for each in answerable]),
        "answerable_with_a_citation": _share([each.grounded for each in answerable]),
        "routed": {kind: _share([each.action == "ROUTE" for each in items]) for kind, items in of_kind.items()},
        "brier": round(brier(confidences, right), 4),
        "expected_calibration_error": round(calibration_error(reliability(confidences, right)), 4),
        "latency_p50_ms": round(statistics.median(latencies), 1),
        "latency_p95_ms": round(latencies[int(0.95 * (len(latencies) - 1))], 1),
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


def _rows(report: Mapping[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    rows = []
    for name, value in report.items():
        if isinstance(value, Mapping):
            rows += _rows(value, (*above, name))
        elif not isinstance(value, list):
            rows.append((above[0], " ".join((*above[1:], name)).replace("_", " "), str(value)))
    return rows


# ------------------------------------------------------------------------------------------------ through the fleet


async def _through_a_fleet(
    documents: Sequence[Document], asked: Sequence[Asked], *, most: int, voice: Voice
) -> list[Judged]:
    chosen = [each for kind in KINDS for each in sample([item for item in asked if item.kind == kind], most)]
    async with _scratch_fleet() as client:
        await _one_by_one("documents made searchable", documents, lambda each: _index(client, each), voice)
        return await _one_by_one("questions asked", chosen, lambda each: _ask(client, each), voice)


@asynccontextmanager
async def _scratch_fleet() -> AsyncIterator[RAGClient]:
    """A fleet of its own, gone afterwards: an evaluation must not be seen by those who work."""
    with tempfile.TemporaryDirectory(prefix="dats-rag-eval-") as scratch:
        environment = {"DATS_DATA_DIR": scratch, "PORT": str(_free_port())}
        settings = load_settings(None, environment)
        async with (
            open_fleet(settings, environ=environment, log_file=Path(scratch) / "fleet.log") as fleet,
            RAGClient(fleet.base_url, timeout=_TIMEOUT_S) as client,
        ):
            yield client


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _one_by_one(label: str, items: Sequence[Any], work: Any, voice: Voice) -> list[Any]:
    """The results in the order of the items, a few at a time."""
    slots = asyncio.Semaphore(_AT_ONCE)
    done = 0
    with voice.progress(label, len(items)) as bar:

        async def one(item: Any) -> Any:
            nonlocal done
            async with slots:
                result = await work(item)
            done += 1
            bar.set(done)
            return result

        return await asyncio.gather(*map(one, items))


async def _index(client: RAGClient, document: Document) -> None:
    metadata = {"artifact_id": document.document_id, "project_id": "evaluation", "title": document.title}
    await client.embed(document.text, metadata)


async def _ask(client: RAGClient, asked: Asked) -> Judged:
    started = time.perf_counter()
    found = await client.answer(asked.text, timeout=_TIMEOUT_S)
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
