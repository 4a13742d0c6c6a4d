"""`make demo`: the whole promise on real input, in a few minutes, with nothing set up.

The input is the Python standard library's own source, which every machine with Python has.
"""

from __future__ import annotations

import asyncio
import platform
import socket
import statistics
import sysconfig
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dats_common.clients.rag import RAGClient
from dats_common.contracts.api import QueryResponse
from dats_common.contracts.events import rfc3339
from dats_common.contracts.strict_json import parse_object
from dats_common.contracts.topology import (
    ARTIFACT_TAINTED,
    EMBEDDING_COMPLETED,
    EMBEDDING_INVALIDATED,
    TASK_VALIDATED,
)
from dats_common.errors import Unavailable
from dats_common.ports import Bus
from dats_common.records import Delivery
from dats_common.settings import Settings, load_settings
from services.backends import open_bus, open_encoder, open_ledger
from services.cli.console import Voice
from services.local import Fleet, open_fleet

PROJECT = "python-stdlib"
TARGET_CHARS = 1_000_000  # about 1,500 chunks of the default encoder
LONGEST_MODULE = 200_000
_SILENCE_S = 120.0  # no event for this long means that the fleet is stuck
_TIMED_QUERIES = 60
_RAW_SAMPLE = 300
_LOG_TAIL = 20
_QUERIES_AFTER = 20  # that start after the acknowledgement

# Asked, and the module that a Python programmer would open.
QUESTIONS = (
    ("copy a whole directory tree recursively", "shutil.py"),
    ("least recently used cache decorator for a function", "functools.py"),
    ("wrap a paragraph of text to a given line width", "textwrap.py"),
    ("read an INI file with sections and options", "configparser.py"),
    ("create a temporary directory that is removed afterwards", "tempfile.py"),
    ("SequenceMatcher get_close_matches", "difflib.py"),
)
FALLEN = ("copy a whole directory tree recursively", "shutil.py")


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the standard library as an approved output."""

    artifact_id: str
    content: str


def standard_library(*, everything: bool) -> list[Module]:
    """Modules in name order, those that the questions need first; without `everything`, about 1 MB of them."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = sorted(root.rglob("*.py") if everything else root.glob("*.py"))
    skipped = {"site-packages", "test", "tests", "idlelib", "turtledemo", "__pycache__"}
    paths = [path for path in paths if not skipped & set(path.relative_to(root).parts)]
    asked = {name for _, name in QUESTIONS}
    paths.sort(key=lambda path: (path.name not in asked, path))
    modules: list[Module] = []
    size = 0
    for path in paths:
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        usable = 500 <= len(content) <= LONGEST_MODULE and "\0" not in content
        if usable and (everything or size + len(content) <= TARGET_CHARS):
            modules.append(Module(path.relative_to(root).as_posix(), content))
            size += len(content)
    return modules


def validated(module: Module) -> dict[str, Any]:
    """The event that QA would publish."""
    return {
        "specversion": "1.0",
        "id": str(uuid.uuid4()),
        "source": "demo-qa",
        "type": TASK_VALIDATED,
        "time": rfc3339(time.time_ns() // 1000),
        "data": {
            "artifact_id": module.artifact_id,
            "content": module.content,
            "metadata": {
                "project_id": PROJECT,
                "provenance_id": f"cpython-{platform.python_version()}",
                "domain": "code-python",
                "doc_type": "module",
                "language": "python",
                "title": module.artifact_id,
            },
        },
    }


async def run_demo(*, voice: Voice, everything: bool) -> bool:
    """Returns whether everything that should be found was found, and what should be gone is gone."""
    with tempfile.TemporaryDirectory(prefix="dats-rag-demo-") as scratch:
        environment = {"DATS_DATA_DIR": scratch, "PORT": str(_free_port())}
        settings = load_settings(None, environment)
        modules = await asyncio.to_thread(standard_library, everything=everything)
        voice.say(
            f"Starting the fleet: a durable queue, a ledger, Qdrant's engine, one writer, one query replica "
            f"(data in {scratch}, removed at the end)"
        )
        started = time.perf_counter()
        async with (
            _fleet(settings, environment, Path(scratch) / "fleet.log", voice) as fleet,
            open_bus(settings, name="demo") as bus,
        ):
            voice.say(f"Up after {time.perf_counter() - started:.1f} s: {fleet.base_url}\n")
            async with RAGClient(fleet.base_url) as client:
                chunks, seconds = await _index(bus, modules, voice)
                found = await _ask(client, voice)
                gone = await _taint(client, bus, voice)
                latencies = await _time_queries(client)
            raw = await _raw_rate(settings, voice)
    rate = chunks / seconds
    summary = {
        "documents": len(modules),
        "chunks": chunks,
        "documents_per_s": round(len(modules) / seconds, 1),
        "chunks_per_s": round(rate, 1),
        "ratio_to_raw_encoder": round(rate / raw, 2),
        "query_p50_ms": round(statistics.median(latencies), 1),
        "query_p95_ms": round(statistics.quantiles(latencies, n=20)[-1], 1),
        "taint_published_to_invisible_ms": round(gone.published_to_invisible_ms, 1),
        "last_query_that_saw_it_minus_acknowledgement_ms": round(gone.last_seen_minus_ack_ms, 1),
        "found": f"{found}/{len(QUESTIONS)}",
        "still_visible": gone.still_visible,
    }
    voice.table("Summary", ("what", "value"), [(name.replace("_", " "), str(value)) for name, value in summary.items()])
    voice.result(summary)
    well = found == len(QUESTIONS) and not gone.still_visible
    voice.say("The demo ended well." if well else "The demo did NOT end well: see the table.")
    return well


@asynccontextmanager
async def _fleet(
    settings: Settings, environment: Mapping[str, str], log_file: Path, voice: Voice
) -> AsyncIterator[Fleet]:
    """The fleet, its logs kept out of sight unless something goes wrong."""
    try:
        async with open_fleet(settings, environ=environment, log_file=log_file) as fleet:
            yield fleet
    except Exception:
        voice.note("The fleet's log ends:\n" + _tail(log_file))
        raise


def _tail(log_file: Path) -> str:
    lines = log_file.read_text(encoding="utf-8").splitlines() if log_file.exists() else []
    return "\n".join(lines[-_LOG_TAIL:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def _next(events: AsyncIterator[Delivery]) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_SILENCE_S):
            data: dict[str, Any] = parse_object((await anext(events)).body)["data"]
            return data
    except TimeoutError as error:
        raise Unavailable(f"no event from the fleet for {_SILENCE_S:.0f} s; its log says why") from error


async def _index(bus: Bus, modules: Sequence[Module], voice: Voice) -> tuple[int, float]:
    """Publish all modules as QA does, and wait until each is searchable. Returns chunks and seconds."""
    chunks = 0
    started = time.perf_counter()
    async with bus.watch(EMBEDDING_COMPLETED) as completed:
        with voice.progress("approved outputs made searchable", len(modules)) as bar:
            for module in modules:
                event = validated(module)
                await bus.publish(TASK_VALIDATED, event, event_id=event["id"])
            waiting = {module.artifact_id for module in modules}
            while waiting:
                data = await _next(completed)
                if data["artifact_id"] in waiting:
                    waiting.remove(data["artifact_id"])
                    chunks += data["chunks"]
                    bar.set(len(modules) - len(waiting))
    seconds = time.perf_counter() - started
    voice.say(f"{len(modules)} modules, {chunks} chunks, searchable after {seconds:.1f} s\n")
    return chunks, seconds


async def _ask(client: RAGClient, voice: Voice) -> int:
    """Ask the questions. Returns how many found their module among the sources."""
    rows = []
    right = 0
    for question, expected in QUESTIONS:
        answer = await client.query(question, project_id=PROJECT)
        hit = expected in _artifacts(answer)
        right += hit
        best = answer.sources[0] if answer.sources else None
        rows.append(
            (
                question,
                best.artifact_id if best else "-",
                f"{best.relevance_score:.3f}" if best else "-",
                " ".join(best.snippet.split())[:60] if best else "-",
                "yes" if hit else "NO",
            )
        )
    voice.table("Searches", ("question", "best source", "similarity", "snippet", "expected found"), rows)
    return right


def _artifacts(answer: QueryResponse) -> set[str]:
    return {source.artifact_id for source in answer.sources}


@dataclass(frozen=True, slots=True)
class Gone:
    """How fast a tainted artifact vanished.

    Attributes:
        published_to_invisible_ms: until the first answer without it.
        last_seen_minus_ack_ms: start of the last query that still saw it, minus `embedding.invalidated`'s arrival:
            negative is the promise.
    """

    published_to_invisible_ms: float
    last_seen_minus_ack_ms: float
    still_visible: bool


async def _taint(client: RAGClient, bus: Bus, voice: Voice) -> Gone:
    """Publish a taint as Cascade does while queries go on without a pause, and watch the artifact vanish."""
    question, artifact_id = FALLEN
    seen: list[tuple[float, float, bool]] = []  # when a query started and ended, and whether it saw the artifact
    saw_it, stop = asyncio.Event(), asyncio.Event()

    async def ask() -> None:
        asked_at = time.perf_counter()
        was_seen = artifact_id in _artifacts(await client.query(question, project_id=PROJECT))
        seen.append((asked_at, time.perf_counter(), was_seen))
        if was_seen:
            saw_it.set()

    async def keep_asking() -> None:
        while not stop.is_set():
            await ask()

    async with bus.watch(EMBEDDING_INVALIDATED) as invalidated:
        asking = [asyncio.create_task(keep_asking(), name=f"asking-{number}") for number in range(2)]
        try:
            async with asyncio.timeout(_SILENCE_S):
                await saw_it.wait()
            published_at = time.perf_counter()
            event = {"data": {"artifact_id": artifact_id, "cascade_id": "demo"}}
            await bus.publish(ARTIFACT_TAINTED, event, event_id=str(uuid.uuid4()))
            while artifact_id not in (await _next(invalidated))["artifact_ids"]:
                pass
            acknowledged_at = time.perf_counter()
            for _ in range(_QUERIES_AFTER):
                await ask()
        finally:
            stop.set()
            await asyncio.gather(*asking)
    last_seen_at = max(asked_at for asked_at, _, was_seen in seen if was_seen)
    gone_at = min(
        answered_at for asked_at, answered_at, was_seen in seen if not was_seen and answered_at > published_at
    )
    gone = Gone(
        published_to_invisible_ms=(gone_at - published_at) * 1e3,
        last_seen_minus_ack_ms=(last_seen_at - acknowledged_at) * 1e3,
        still_visible=last_seen_at > acknowledged_at,
    )
    voice.say(
        f"\nTainted {artifact_id}: {gone.published_to_invisible_ms:.0f} ms after the taint was published a query no "
        f"longer saw it;\n"
        f"of {len(seen)} queries, none that started after embedding.invalidated saw it "
        f"(the last one that did started {-gone.last_seen_minus_ack_ms:.0f} ms before).\n"
        if not gone.still_visible
        else f"\nTainted {artifact_id}: STILL VISIBLE to a query that started after embedding.invalidated\n"
    )
    return gone


async def _time_queries(client: RAGClient) -> list[float]:
    """Latencies of single queries in ms, as a caller sees them over HTTP."""
    latencies = []
    for number in range(_TIMED_QUERIES):
        question, _ = QUESTIONS[number % len(QUESTIONS)]
        started = time.perf_counter()
        await client.query(question, project_id=PROJECT)
        latencies.append((time.perf_counter() - started) * 1e3)
    return latencies


async def _raw_rate(settings: Settings, voice: Voice) -> float:
    """Chunks per second of the bare encoder over an even sample of the same chunks, after the fleet has stopped."""
    texts: list[str] = []
    async with open_ledger(settings) as ledger:
        async for _, chunks in ledger.live_chunks():
            texts += [chunk.text for chunk in chunks]
    sample = texts[:: max(1, len(texts) // _RAW_SAMPLE)]
    async with open_encoder(settings, for_writer=True) as encoder:
        await encoder.encode(sample[:8], kind="document")
        started = time.perf_counter()
        await encoder.encode(sample, kind="document")
        rate = len(sample) / (time.perf_counter() - started)
    voice.say(f"The bare encoder alone: {rate:.1f} chunks/s\n")
    return rate
