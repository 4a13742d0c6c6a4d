"""`dats-rag doctor` on real faults: each is named, with what to do and a heading that the runbook has."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from fleet import bare_environment
from ledgers import Writer, tainted, validated
from scripted_ollama import open_scripted_ollama
from servers import PostgresServer, RabbitServer, free_port
from typer.testing import CliRunner

from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sqlite_bus import open_sqlite_bus
from dats_common.contracts.events import build_failed
from dats_common.contracts.topology import TASK_VALIDATED, VALIDATED_QUEUE
from dats_common.domain.taint import Verdict
from dats_common.records import Heartbeat
from drills.runbook import headings
from services.cli.commands import app

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DEADLINE_S = 90.0


@dataclass(frozen=True)
class Told:
    """What doctor said."""

    status: int
    checks: dict[str, dict[str, Any]]

    def names(self, check: str, *words: str, runbook: str) -> None:
        """Assert that a check failed with these words, and leads to this heading."""
        found = self.checks[check]
        assert found["state"] in ("AWAY", "LOOK"), found
        assert [word for word in words if word not in found["detail"]] == [], found
        assert found["runbook"] == runbook, found["detail"]
        assert runbook in headings()


async def examined(data: Path, **settings: str) -> Told:
    runner = CliRunner(env={**dict.fromkeys(_inherited()), **settings})
    async with asyncio.timeout(DEADLINE_S):
        ended = await asyncio.to_thread(runner.invoke, app, ["doctor", "--json", "--data", str(data)])
    assert ended.exit_code in (0, 1), ended.output
    return Told(ended.exit_code, {each["name"]: each for each in json.loads(ended.stdout)["checks"]})


def _inherited() -> set[str]:
    return set(os.environ) - set(bare_environment())


def beat(writer_id: str, state: Literal["active", "draining"] = "active") -> Heartbeat:
    return Heartbeat(writer_id, state, pending=0, processing=0, model="m", backend="b")


async def test_what_a_laptops_stores_say_is_wrong_and_a_model_server_without_its_model(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    async with open_sqlite_bus(data / "bus.db") as bus:
        await bus.publish(TASK_VALIDATED, {"data": {}}, event_id="")
        async with bus.subscribe(VALIDATED_QUEUE, prefetch=1) as subscription:
            [delivery] = await subscription.batch(max_items=1, max_wait_s=5)
            await subscription.dead_letter(delivery, reason="data.content: is required")
    url = f"sqlite:///{data / 'ledger.db'}"
    an_hour_ago = time.time_ns() // 1000 - 3600 * 1_000_000
    async with open_ledger(url, clock=lambda: an_hour_ago) as ledger:
        failed = build_failed(
            event_id="e", at=an_hour_ago, artifact_id="a", tenant_id="t", failed_event_id=None, reason="r", attempts=1
        )
        await ledger.announce(failed)
    async with open_ledger(url) as ledger:
        await ledger.taint(tainted("a", at_s=0), skew_s=60.0)
        assert (await (await Writer.of(ledger)).admit(validated("a", at_s=10))).verdict is Verdict.QUARANTINED
        for writer_id in ("here:1", "there:2"):
            await ledger.beat(beat(writer_id))
    async with open_scripted_ollama() as ollama:
        told = await examined(data, OLLAMA_BASE_URL=ollama.url, CHAT_MODEL="qwen3:8b")
    assert told.status == 1
    assert told.checks["writer"]["state"] == "ok"
    told.names("dead letters", "1 messages", "dats-rag dlq list", runbook="DatsRagDeadLetters")
    told.names("quarantine", "1 approved versions", "dats-rag quarantine list", runbook="DatsRagQuarantined")
    told.names("outbox", "events of ours have waited", "for up to 36", runbook="DatsRagOutboxStuck")
    told.names("writers", "here:1", "there:2", runbook="The writer is stuck, or you want to fail over")
    told.names("index", "no engine runs on", "dats-rag up", runbook="The index is lost or broken")
    async with open_ledger(url) as ledger:
        for writer_id in ("here:1", "there:2"):
            await ledger.beat(beat(writer_id, "draining"))
    (await examined(data)).names("writer", "was asked to stop", runbook="DatsRagNoActiveWriter")


async def test_servers_that_are_away_a_gpu_that_is_missing_and_a_model_server_that_is_not_there(
    tmp_path: Path,
) -> None:
    nowhere = free_port()
    configuration = tmp_path / "rag-service.yaml"
    configuration.write_text(
        "events: {rabbitmq: {connect_timeout_s: 1}}\nsql: {timeout_s: 2}\nembedding: {device: cuda:7}\n"
    )
    told = await examined(
        tmp_path / "data",
        DATS_CONFIG=str(configuration),
        DATS_SQL_URL=f"postgresql://nobody@127.0.0.1:{nowhere}/none",
        DATS_RABBITMQ_URL=f"amqp://guest:guest@127.0.0.1:{nowhere}/",
        QDRANT_HOST="127.0.0.1",
        QDRANT_GRPC_PORT=str(nowhere),
        OLLAMA_BASE_URL=f"http://127.0.0.1:{nowhere}",
    )
    told.names("ledger", "the ledger", runbook="DatsRagGuardUnreachable")
    told.names("broker", "connect", runbook="The broker is lost")
    told.names("index", "Qdrant", runbook="The index is lost or broken")
    told.names("encoder", "cuda", runbook="The model or the GPU is missing")
    told.names("answers", "search needs no model", runbook="Ollama is away")


@pytest.mark.rabbitmq
@pytest.mark.postgres
async def test_refused_credentials_and_a_model_that_is_not_there(
    rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    broker, database = urlsplit(rabbitmq.url), urlsplit(postgres.url)
    told = await examined(
        tmp_path / "data",
        DATS_RABBITMQ_URL=broker._replace(netloc=f"guest:wrong@{broker.hostname}:{broker.port}").geturl(),
        DATS_SQL_URL=database._replace(netloc=f"nobody@{database.hostname}:{database.port}").geturl(),
        EMBEDDING_MODEL=str(tmp_path / "no-such-model"),
    )
    told.names("broker", "refused the credentials", "DATS_RABBITMQ_URL", runbook="The broker is lost")
    told.names("ledger", "nobody", runbook="A start is refused for a role, a login or a table")
    told.names("encoder", "no-such-model", runbook="The model or the GPU is missing")
