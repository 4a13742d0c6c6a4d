"""`dats-rag eval`: retrieval, answers and grounding on evaluation sets, through a fleet's own HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dats_common.domain.grounding import judge
from dats_common.errors import ConfigurationError
from services.cli import evaluating_answers, evaluating_search
from services.cli.console import Voice
from services.cli.options import EXIT_INTERRUPTED, EXIT_NO, run_until_signal
from services.cli.scratch_fleet import ingest, open_scratch_fleet, settings_of_scratch
from services.evaluate.baseline import (
    PACKAGED,
    TOLERANCE,
    Comparison,
    baseline_of,
    compare,
    read_baseline,
    write_baseline,
)
from services.evaluate.figures import Bin, auroc
from services.evaluate.picture import ranking_svg, reliability_svg
from services.evaluate.sets import (
    CORPUS,
    QRELS,
    QUERIES,
    REPLIES,
    Asked,
    RetrievalSet,
    Said,
    claims,
    is_retrieval_set,
    questions,
    replies,
    retrieval_set,
)

Part = Literal["retrieval", "answers", "grounding"]
PARTS: tuple[Part, ...] = ("retrieval", "answers", "grounding")

# What is asked of every retrieval set is the same; these have more in them.
_WITH_ANSWERS = ("squad2",)
_WITH_EVIDENCE = {"begin_wow": replies, "scifact": claims}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured.

    Attributes:
        sets: names of folders; all if empty.
        most: questions of each kind, evenly spread over the set; None: all for retrieval, and for answers
            `evaluating_answers.DEFAULT_MOST`.
        baseline: what the ranking is held against; None: the one that comes with the package, for the sets that it has
            of this very data.
        renew: where this run's figures are kept as the next baseline.
        config: settings of the fleets that are asked; None: the defaults. With a reranker there, hybrid searches are
            asked without and with it.
    """

    folder: Path
    out: Path
    sets: Sequence[str] = ()
    modes: Sequence[str] = evaluating_search.MODES
    parts: Sequence[Part] = PARTS
    most: int | None = None
    baseline: Path | None = None
    renew: Path | None = None
    config: Path | None = None


@dataclass(frozen=True, slots=True)
class _Work:
    """What the folder has of what is wanted, read to the last line before anything is started."""

    retrieval: Mapping[str, RetrievalSet]
    answers: Mapping[str, Sequence[Asked]]
    grounding: Mapping[str, Sequence[Said]]
    skipped: Sequence[str]


def evaluate(plan: Plan, *, voice: Voice) -> int:
    """Measure, write `report.json`, `report.md` and pictures to the folder `out`, and compare. Returns the exit status.

    Interrupted, or stopped by an error, the report has what was done by then, and is marked as not complete.

    Raises: ConfigurationError: there is no set, or one cannot be read; the message has file and line.
    """
    # Read first: a run that ends with a file that is missing has cost minutes.
    before = read_baseline(plan.baseline or PACKAGED)
    settings_of_scratch(plan.config, {})
    work = _read(plan, voice)
    report: dict[str, Any] = {
        "complete": False,
        "config": plan.config.name if plan.config else None,
        "retrieval": {},
        "answers": {},
        "grounding": {},
        "skipped": list(work.skipped),
    }
    try:
        report["complete"] = run_until_signal(lambda: _measure(work, plan, report, voice)) is not None
    finally:
        measured = baseline_of(report["retrieval"])
        comparison = compare(measured, before)
        _write(report, comparison, plan.out)
    _tell(report, comparison, plan, voice)
    if not report["complete"]:
        return EXIT_INTERRUPTED
    if plan.renew:
        write_baseline(plan.renew, measured)
        voice.note(f"{plan.renew} has the figures of {', '.join(measured) or 'no set'} now")
    # With the packaged baseline other data is no failure: whoever named a baseline wanted to be held against it.
    return EXIT_NO if comparison.drops or (plan.baseline and comparison.not_compared) else 0


def _read(plan: Plan, voice: Voice) -> _Work:
    folders = {folder.name: folder for folder in sorted(plan.folder.iterdir()) if folder.is_dir()}
    if unknown := [name for name in plan.sets if name not in folders]:
        raise ConfigurationError(f"{plan.folder} has no folder {', '.join(unknown)}; it has {', '.join(folders)}")
    retrieval, answers, grounding, skipped = {}, {}, {}, []
    for name, folder in folders.items():
        if plan.sets and name not in plan.sets:
            continue
        ranked = is_retrieval_set(folder)
        if not ranked and name not in _WITH_EVIDENCE:
            skipped.append(name)
            voice.note(f"{name}: skipped, it has none of {CORPUS}, {QUERIES}, {QRELS}, {REPLIES}")
            continue
        asks = ranked and "answers" in plan.parts and name in _WITH_ANSWERS
        if ranked and ("retrieval" in plan.parts or asks):
            retrieval[name] = retrieval_set(folder)
            if retrieval[name].loose:
                voice.note(f"{folder / QRELS}: {retrieval[name].loose} judgements of what is not there")
        if asks:
            answers[name] = questions(folder)
        if "grounding" in plan.parts and name in _WITH_EVIDENCE:
            grounding[name] = _WITH_EVIDENCE[name](folder)
    if not (retrieval or grounding):
        raise ConfigurationError(f"{plan.folder} has no evaluation set of what is to be measured")
    return _Work(retrieval, answers, grounding, skipped)


async def _measure(work: _Work, plan: Plan, report: dict[str, Any], voice: Voice) -> bool:
    for name, said in work.grounding.items():
        report["grounding"][name] = await asyncio.to_thread(_grounding, said)
    for of_set in work.retrieval.values():
        await _through_a_fleet(of_set, work, plan, report, voice)
    return True


async def _through_a_fleet(of_set: RetrievalSet, work: _Work, plan: Plan, report: dict[str, Any], voice: Voice) -> None:
    """A fleet for each set: how rare a word is would otherwise depend on which other sets were chosen."""
    name = of_set.name
    async with open_scratch_fleet(plan.config) as fleet:
        label = f"{name}: documents made searchable"
        ingested = await ingest(fleet.bus, of_set.documents, domain=of_set.domain, label=label, voice=voice)
        if ingested.refused:
            why = "; ".join(sorted(set(ingested.refused.values())))
            voice.note(f"{name}: {len(ingested.refused)} documents refused: {why}")
        if "retrieval" in plan.parts:
            part = evaluating_search.described(of_set, ingested, most=plan.most)
            report["retrieval"][name] = part
            modes = [*plan.modes]
            if fleet.reranks and "hybrid" in modes:
                modes.insert(modes.index("hybrid") + 1, evaluating_search.RERANKED)
            await evaluating_search.ask_all(
                fleet.client, of_set, modes=modes, most=plan.most, into=part["modes"], voice=voice
            )
        if name in work.answers:
            judged = await evaluating_answers.ask_all(fleet.client, work.answers[name], most=plan.most, voice=voice)
            report["answers"][name] = evaluating_answers.figures(judged)


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


# ------------------------------------------------------------------------------------------------------------ report


def _write(report: dict[str, Any], comparison: Comparison, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    report["comparison"] = {
        "tolerance": TOLERANCE,
        "compared": comparison.compared,
        "drops": comparison.drops,
        "not_compared": comparison.not_compared,
    }
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (out / "report.md").write_text(_markdown(report, comparison), encoding="utf-8")
    if report["retrieval"]:
        ranked = {name: _by_mode(each["modes"]) for name, each in report["retrieval"].items()}
        (out / "retrieval.svg").write_text(ranking_svg(ranked, title="nDCG@10 by set and mode"), encoding="utf-8")
    for name, each in report["answers"].items():
        bins = [Bin(**one) for one in each["reliability"]]
        picture = reliability_svg(bins, title=f"Confidence and truth, {name}")
        (out / "reliability.svg").write_text(picture, encoding="utf-8")


def _by_mode(modes: Mapping[str, Any]) -> dict[str, float]:
    return {mode: figures["ndcg_at_10"] for mode, figures in modes.items() if figures["ndcg_at_10"] is not None}


def _markdown(report: Mapping[str, Any], comparison: Comparison) -> str:
    parts = [] if report["complete"] else ["**Not complete**: the run was interrupted or failed."]
    if report["config"]:
        parts += [f"Not the defaults: settings of {report['config']}."]
    if report["retrieval"]:
        parts += [_table(evaluating_search.COLUMNS, evaluating_search.rows(report["retrieval"]))]
        parts += [_table(("set", "domain", "documents", "refused", "chunks", "judged", "off-corpus"), _sizes(report))]
    if other := _other(report):
        parts += [_table(("set", "figure", "value"), other)]
    parts += ["\n".join(f"- {line}" for line in _verdict(comparison))]
    return "\n\n".join(parts) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sizes(report: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            each["domain"] or "",
            *(str(each[what]) for what in ("documents", "documents_refused", "chunks")),
            *(f"{each['questions'][kind]} of {each['questions_of_the_set'][kind]}" for kind in ("judged", "offcorpus")),
        )
        for name, each in report["retrieval"].items()
    ]


def _other(report: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Figures of answers and grounding, each in a row."""
    return [
        row for part in ("answers", "grounding") for name, each in report[part].items() for row in _rows(each, (name,))
    ]


def _rows(figures: Mapping[str, Any], above: tuple[str, ...]) -> list[tuple[str, str, str]]:
    rows = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            rows += _rows(value, (*above, name))
        elif not isinstance(value, list):
            rows.append((above[0], " ".join((*above[1:], name)).replace("_", " "), str(value)))
    return rows


def _verdict(comparison: Comparison) -> list[str]:
    held = ", ".join(comparison.compared)
    return [
        *(f"Dropped: {drop}" for drop in comparison.drops),
        *(f"Not compared: {reason}" for reason in comparison.not_compared),
        *([f"Held against the baseline, within {TOLERANCE}: {held}"] if held and not comparison.drops else []),
    ]


def _tell(report: Mapping[str, Any], comparison: Comparison, plan: Plan, voice: Voice) -> None:
    if report["retrieval"]:
        voice.table("Retrieval", evaluating_search.COLUMNS, evaluating_search.rows(report["retrieval"]))
    if other := _other(report):
        voice.table("Answers and grounding", ("set", "figure", "value"), other)
    for line in _verdict(comparison):
        voice.note(line)
    voice.note(f"{plan.out / 'report.md'} has it all" + ("" if report["complete"] else ", as far as it went"))
    voice.result(report)
