"""A small gold set of our own: questions about this project, over its documents and its code. Source: spec 5, A3."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from servers import free_port

from dats_common.clients.rag import RAGClient
from dats_common.settings import load_settings
from services.local import open_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
GOLD = json.loads(Path(__file__).with_name("gold.json").read_text(encoding="utf-8"))
LEAST_RECALL = 0.8  # Source: spec 5, A3.
PATIENT_S = 120


def files() -> dict[str, str]:
    """What the gold set knows: pages and modules by their paths; what is nearly empty is no content."""
    pages = [*(ROOT / "docs").rglob("*.md")]
    modules = [*(ROOT / "dats_common").rglob("*.py"), *(ROOT / "services").rglob("*.py")]
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in (*pages, *modules)}
    return {name: content for name, content in found.items() if len(content.strip()) >= 10}


def test_the_gold_set_names_files_that_are_there() -> None:
    known = files()
    assert len(GOLD) >= 30
    assert [name for each in GOLD for name in each["in"] if name not in known] == []


async def test_the_right_file_is_among_the_first_five(tmp_path: Path) -> None:
    patient = tmp_path / "patient.yaml"
    patient.write_text(f"query: {{embed_wait_s: {PATIENT_S}}}")  # as long as the slowest machine takes for its turn
    settings = load_settings(patient, {"DATS_DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port())})
    slots = asyncio.Semaphore(8)

    async def embed(client: RAGClient, name: str, content: str) -> None:
        domain = "docs" if name.endswith(".md") else "code-python"
        said = {"artifact_id": name, "project_id": "gold", "domain": domain, "source_uri": name}
        async with slots:
            done = await client.embed(content, said)
        assert done["status"] == "indexed"

    async with open_fleet(settings) as fleet, RAGClient(base_url=fleet.base_url, timeout=2 * PATIENT_S) as client:
        await asyncio.gather(*(embed(client, name, content) for name, content in files().items()))
        missed = []
        for each in GOLD:
            answer = await client.query(each["ask"], top_k=20, max_tokens=8000)
            first = list(dict.fromkeys(source.artifact_id for source in answer.sources))[:5]
            if not set(first) & set(each["in"]):
                missed.append((each["ask"], first))
    recall = 1 - len(missed) / len(GOLD)
    print(f"recall@5 {recall:.3f} of {len(GOLD)} questions; missed: {missed}")
    assert recall >= LEAST_RECALL, missed
