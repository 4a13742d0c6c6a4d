"""A fleet for an evaluation, gone afterwards, and the way into it that approved outputs take."""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dats_common.clients.rag import RAGClient
from dats_common.contracts.events import rfc3339
from dats_common.contracts.strict_json import parse_object
from dats_common.contracts.topology import (
    EMBEDDING_COMPLETED,
    EMBEDDING_FAILED,
    EMBEDDING_QUARANTINED,
    TASK_VALIDATED,
)
from dats_common.errors import ConfigurationError, Unavailable
from dats_common.ports import Bus
from dats_common.records import Delivery
from dats_common.settings import Settings, load_settings
from services.backends import open_bus
from services.cli.console import Voice
from services.evaluate.sets import Document
from services.local import open_fleet

PROJECT = "evaluation"
TIMEOUT_S = 120.0
_SILENCE_S = 180.0  # No event for so long means that the fleet is stuck.
_RERANKER_S = 60.0
_PUBLISHED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ScratchFleet:
    """A fleet of its own: an evaluation must not be seen by those who work, nor they by it."""

    client: RAGClient
    bus: Bus
    reranks: bool


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of documents.

    Attributes:
        refused: why, by document id: it holds a null character, for instance.
    """

    chunks: int
    seconds: float
    refused: dict[str, str]


def settings_of_scratch(config: Path | None, environment: Mapping[str, str]) -> Settings:
    """The settings of a fleet of its own. What is exported for a fleet that works is not read.

    Args:
        config: a file of settings; None: the defaults.
        environment: what wins over the file.

    Raises: ConfigurationError: they are wrong, or would lead to others or let others in.
    """
    settings = load_settings(config, environment)
    for_others = {
        "sql.url": not settings.sql.is_embedded,
        "events.rabbitmq": not settings.events.rabbitmq.is_embedded,
        "lightrag.vector_store": not settings.lightrag.vector_store.is_embedded,
        "auth.mode": settings.auth.mode != "off",
        "server.host": not settings.server.is_loopback,
    }
    if named := [name for name, is_set in for_others.items() if is_set]:
        raise ConfigurationError(
            f"an evaluation has a fleet of its own, which is removed afterwards: leave {', '.join(named)} out"
        )
    return settings


@asynccontextmanager
async def open_scratch_fleet(config: Path | None) -> AsyncIterator[ScratchFleet]:
    """The production services on an empty directory that is removed.

    Args:
        config: as in `settings_of_scratch`.

    Raises: ConfigurationError: as `settings_of_scratch`, or a service refuses them; Unavailable: one did not start.
    """
    with tempfile.TemporaryDirectory(prefix="dats-rag-eval-") as scratch:
        environment = {
            "DATS_DATA_DIR": scratch,
            "LIGHTRAG_WORKING_DIR": str(Path(scratch) / "lightrag"),
            "DATS_WRITER_METRICS_PORT": "0",
            "OTEL_SDK_DISABLED": "true",
            "PORT": str(_free_port()),
        }
        settings = settings_of_scratch(config, environment)
        log_file = Path(scratch) / "fleet.log"
        async with AsyncExitStack() as stack:
            try:
                fleet = await stack.enter_async_context(
                    open_fleet(settings, environ=environment, config_file=config, log_file=log_file)
                )
            except (ConfigurationError, Unavailable) as error:  # The log is removed with the directory.
                kind = ConfigurationError if isinstance(error, ConfigurationError) else Unavailable
                raise kind("; ".join([str(error), *_refusals(log_file)])) from error
            bus = await stack.enter_async_context(open_bus(settings, name="eval"))
            client = await stack.enter_async_context(RAGClient(fleet.base_url, timeout=TIMEOUT_S))
            if reranks := settings.query.reranking.enabled:
                await _loaded(client)
            yield ScratchFleet(client, bus, reranks)


def _refusals(log_file: Path) -> list[str]:
    """What services said when they did not start."""
    refused = []
    for line in log_file.read_text(encoding="utf-8", errors="replace").splitlines() if log_file.exists() else ():
        with suppress(ValueError):
            said = json.loads(line)
            if said.get("event") in {"start_refused", "start_failed"}:
                refused.append(str(said.get("detail")))
    return refused


async def _loaded(client: RAGClient) -> None:
    """Return once the reranker has been loaded; without it, its rows would be those of fusion."""
    reranker = None
    with suppress(TimeoutError):
        async with asyncio.timeout(_RERANKER_S):
            while reranker is None or reranker.status != "ok":
                reranker = (await client.health()).components["reranker"]
                await asyncio.sleep(0.2)
            return
    raise Unavailable(f"the reranker was not there in {_RERANKER_S:.0f} s: {reranker.detail if reranker else ''}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def ingest(bus: Bus, documents: Sequence[Document], *, domain: str | None, label: str, voice: Voice) -> Ingested:
    """Publish each document as QA does, and wait until the writer has said of each what became of it.

    Raises: Unavailable: the fleet fell silent.
    """
    waiting = {document.document_id for document in documents}
    refused: dict[str, str] = {}
    chunks = 0
    started = time.perf_counter()
    slots = asyncio.Semaphore(_PUBLISHED_AT_ONCE)

    async def publish(document: Document) -> None:
        async with slots:
            event = validated(document, domain=domain)
            await bus.publish(TASK_VALIDATED, event, event_id=event["id"])

    async with bus.watch(EMBEDDING_COMPLETED, EMBEDDING_FAILED, EMBEDDING_QUARANTINED) as outcomes:
        with voice.progress(label, len(documents)) as bar:
            async with asyncio.TaskGroup() as publishing:
                for document in documents:
                    publishing.create_task(publish(document))
            while waiting:
                data = await _next(outcomes)
                if data["artifact_id"] not in waiting:
                    continue
                waiting.remove(data["artifact_id"])
                if "reason" in data:
                    refused[data["artifact_id"]] = data["reason"]
                else:
                    chunks += data["chunks"]
                bar.set(len(documents) - len(waiting))
    return Ingested(chunks, time.perf_counter() - started, refused)


def validated(document: Document, *, domain: str | None) -> dict[str, Any]:
    """`task.validated` as QA would publish it: the one place that says how a set's document is handed over.

    A set of web pages gives their extracted text, by the section that its judgements name, and that is what is sent.
    """
    metadata = {
        "project_id": PROJECT,
        "provenance_id": "evaluation",
        "domain": domain or "",
        "title": document.title,
        "language": document.language,
    }
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": "evaluation",
        "type": TASK_VALIDATED,
        "time": rfc3339(time.time_ns() // 1000),
        "data": {"artifact_id": document.document_id, "content": document.text, "metadata": metadata},
    }


async def _next(outcomes: AsyncIterator[Delivery]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_SILENCE_S):
            data: dict[str, Any] = parse_object((await anext(outcomes)).body)["data"]
            return data
    except TimeoutError as error:
        raise Unavailable(f"no event from the fleet for {_SILENCE_S:.0f} s") from error
