"""The same corpus ranks the same: after a restart, in another order of arrival, embedded anew, on another fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fleet import eventually
from servers import free_port

from dats_common.clients.rag import RAGClient
from dats_common.settings import Settings, load_settings
from services.local import open_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

THEMES = ("invoice", "payment", "refund", "ledger", "audit", "tax", "budget", "forecast")
QUESTIONS = (
    "who approves a refund",
    "get_invoice_total",
    "the audit of payments and taxes",
    "budget forecast for the ledger",
    "nothing of this is about giraffes",
)
MODES = ("hybrid", "vector", "keyword")

Ranked = dict[tuple[str, str], list[tuple[str, float]]]
"""Source id and score of each hit, in order, by question and mode."""


def corpus() -> dict[str, str]:
    """Documents of which some say the very same, so that their scores tie, and some nearly so."""
    documents = {}
    for number, theme in enumerate(THEMES):
        other = THEMES[(number + 3) % len(THEMES)]
        same = f"The {theme} is checked by the {other} team before get_{theme}_total is called. " * 3
        for copy in range(3):
            documents[f"{theme}-{copy}"] = same
        documents[f"{theme}-near"] = f"{same} It mentions get_{theme}_totals once."
    return documents


async def embed(client: RAGClient, documents: Mapping[str, str], order: Sequence[str]) -> None:
    for artifact in order:
        await client.embed(documents[artifact], {"artifact_id": artifact, "project_id": "proj-1"})


async def ranked(client: RAGClient) -> Ranked:
    found: Ranked = {}
    for question in QUESTIONS:
        for mode in MODES:
            answer = await client.query(question, search_mode=mode, top_k=20, max_tokens=8000)
            found[question, mode] = [(each.source_id, each.relevance_score) for each in answer.sources]
    return found


def assert_same(one: Ranked, other: Ranked) -> None:
    for asked, hits in one.items():
        assert [source for source, _ in hits] == [source for source, _ in other[asked]], asked
        for (_, score), (_, other_score) in zip(hits, other[asked], strict=True):
            assert score == pytest.approx(other_score, abs=1e-6), asked


def settings_in(directory: Path) -> Settings:
    return load_settings(None, {"DATS_DATA_DIR": str(directory), "PORT": str(free_port())})


async def test_rank_and_score_depend_on_the_corpus_alone(tmp_path: Path) -> None:
    documents = corpus()
    settings = settings_in(tmp_path / "one")
    async with open_fleet(settings) as fleet, RAGClient(base_url=fleet.base_url) as client:
        await embed(client, documents, sorted(documents))
        first = await ranked(client)
        assert any(hits for hits in first.values())
        tied = [hits for hits in first.values() if len({score for _, score in hits}) < len(hits)]
        assert tied, "the corpus is to have ties"
        assert_same(first, await ranked(client))
    async with open_fleet(settings) as fleet, RAGClient(base_url=fleet.base_url) as client:
        assert_same(first, await ranked(client))  # after a restart

        # Embedded anew: every second document in another version, then as it was.
        half = sorted(documents)[::2]
        await embed(client, {name: f"{documents[name]} A new version." for name in half}, half)
        await embed(client, documents, half)

        async def swept() -> bool:
            # Term weights count every point of the tenant, until the sweep has taken those of older versions.
            health = await client.health()
            return health.index_metrics is not None and health.index_metrics.total_vectors == len(documents)

        await eventually(swept, what="the sweep of older versions")
        assert_same(first, await ranked(client))

    other = settings_in(tmp_path / "other")
    async with open_fleet(other) as fleet, RAGClient(base_url=fleet.base_url) as client:
        await embed(client, documents, sorted(documents, reverse=True))
        assert_same(first, await ranked(client))
