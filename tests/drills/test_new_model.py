"""Moving to another model: refused until it is asked for, then everything that is live is embedded anew."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fleet import bare_environment
from index_engine import index_on
from ledgers import Writer, validated
from scripted_encoder import MODEL, open_scripted_encoder

from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.embedded.qdrant_edge import open_engine_process
from drills.runbook import BIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DEADLINE_S = 120.0


async def reindex(data: Path, *arguments: str, **settings: str) -> tuple[int, Any, str]:
    """Exit status, the JSON that was printed, and stderr."""
    running = await asyncio.create_subprocess_exec(
        *[str(BIN / "dats-rag"), "reindex", "--json", "--data", str(data), *arguments],
        env=bare_environment(NO_PROXY="127.0.0.1", **settings),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        printed, told = await running.communicate()
    assert running.returncode is not None
    return running.returncode, json.loads(printed) if printed else None, told.decode()


async def test_another_model_is_refused_and_then_embeds_all_that_is_live(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with open_ledger(f"sqlite:///{data / 'ledger.db'}") as ledger:
        writer = await Writer.of(ledger)
        for name in ("a", "b", "c"):
            await writer.publish(validated(name, f"the content of {name}", at_s=-10))
    assert (await reindex(data))[:2] == (0, {"artifacts": 3, "chunks": 6, "resumed_after_chunks": 0})

    async with open_scripted_encoder(MemoryEncoder()) as server:
        another = {"MODEL_GATEWAY_URL": f"{server.url}/v1", "EMBEDDING_MODEL": MODEL}
        status, _, told = await reindex(data, **another)
        assert status == 78
        assert MODEL in told
        assert "reindex --recreate" in told
        status, done, told = await reindex(data, "--recreate", **another)
        assert (status, done) == (0, {"artifacts": 3, "chunks": 6, "resumed_after_chunks": 0}), told
        assert sum(len(asked["input"]) for asked in server.asked) >= 6
    async with open_engine_process(data / "qdrant") as engine, index_on(engine, collection="dats_embeddings") as index:
        assert await index.count() == 6
