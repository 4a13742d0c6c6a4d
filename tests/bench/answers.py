"""What the answer pipeline adds to a model's own time: POST /answer over HTTP, and a model server that answers at once.

The server speaks Ollama's protocol and quotes the sources that it is shown. Its own time, from a request's arrival to
the end of the answer, is taken off each measured one; what is left is everything that the pipeline does.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from dats_common.clients.rag import AnswerOptions, RAGClient
from dats_common.errors import DatsError
from dats_common.settings import Settings, load_settings
from dats_common.settings.catalog import CONFIG_VARIABLE
from services.backends import open_encoder
from tests.bench.corpus import questions
from tests.bench.figures import Figure, latencies
from tests.bench.filling import Filled, fill
from tests.bench.query import TAG, index_real
from tests.bench.scene import Scene, Servers, open_scene, open_servers, scratch_settings
from tests.scripted_ollama import ScriptedOllama, open_scripted_ollama
from tests.servers import ServerMissing

OVERHEAD_P95_MS = 40.0
"""Source: the issue of the answer pipeline, "Must show": at 20,000 chunks, rerank and judge apart."""
QUOTED_SOURCES = 3
QUOTED_WORDS = 25
LEAST_CITED = 0.9
_SOURCE = re.compile(r"<<<source (?P<alias>\d+)>>>\n.*?\n---\n(?P<text>.*?)\n---\n<<<end of source", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Course:
    """One way to answer, on a fleet of its own. What is not in the plain pipeline is measured apart from it.

    Attributes:
        config: settings of the fleet that have no variable, as its YAML file has them.
        options: of every question.
        p95_ms: the target, where there is one.
    """

    label: str
    config: Mapping[str, Any] = field(default_factory=dict)
    options: AnswerOptions = field(default_factory=AnswerOptions)
    p95_ms: float | None = None


COURSES = (
    _Course("over Ollama, less its time", p95_ms=OVERHEAD_P95_MS),
    _Course("strict, judged, over Ollama, less its time", options={"strict": True}),
    _Course("extractive", config={"answers": {"generator": "extractive"}}),
)
_ROLES = ("query", "engine", "ledger")


@dataclass(frozen=True, slots=True)
class _Answered:
    """What one client saw of one answer; `model_s` is what the model server had of it."""

    seconds: float
    model_s: float
    sources: int
    cited: bool


async def answers(*, quick: bool) -> list[Figure]:
    """On the embedded fleet, and with RabbitMQ and PostgreSQL where they are installed."""
    chunks, count = (2_000, 100) if quick else (20_000, 400)
    async with open_scripted_ollama() as ollama:
        ollama.respond = _quote
        ollama.at_once = True  # To read a real model's tokens takes no time of its own: it goes on while it writes.
        figures = await _measure(Servers(), ollama, chunks=chunks, count=count)
        try:
            async with open_servers() as servers:
                figures += await _measure(servers, ollama, chunks=chunks, count=count)
        except ServerMissing as error:
            print(f"answers: embedded only: {error}")
    return figures


async def _measure(servers: Servers, ollama: ScriptedOllama, *, chunks: int, count: int) -> list[Figure]:
    environment = {**servers.environment, "OLLAMA_BASE_URL": ollama.url}
    asked, others = questions(count), questions(20, seed=2)  # a replica knows the vectors of what it was asked
    label = f"{servers.name}, {chunks // 1000}k chunks"
    figures: list[Figure] = []
    with scratch_settings(replace(servers, environment=environment)) as settings:
        async with open_encoder(settings, for_writer=True) as encoder:
            await fill(settings, encoder, Filled(), chunks=chunks, domain="docs", tag=TAG)
        async with open_scene(settings, servers) as scene:
            await index_real(scene)
            await _search(scene.client, others)
            searched = await _search(scene.client, asked)
        figures += latencies("answers", f"{label}: search by the same questions", searched, 50, 95)
        for course in COURSES:
            async with _open_course(settings, servers, course) as scene:
                await _ask(scene.client, others, course.options, ollama)
                cpu_s = scene.cpu_s(*_ROLES)
                answered = await _ask(scene.client, asked, course.options, ollama)
                cpu_s = scene.cpu_s(*_ROLES) - cpu_s
            figures += _figures(f"{label}: {course.label}", answered, cpu_s=cpu_s, p95_ms=course.p95_ms)
    return figures


@asynccontextmanager
async def _open_course(settings: Settings, servers: Servers, course: _Course) -> AsyncIterator[Scene]:
    """The fleet on the same data, with the course's own settings."""
    file = settings.data_dir / "course.yaml"
    file.write_text(json.dumps(course.config), encoding="utf-8")  # YAML holds all of JSON.
    os.environ[CONFIG_VARIABLE] = str(file)  # Put back with the rest when the scratch settings end.
    async with open_scene(load_settings(None, os.environ), servers) as scene:
        yield scene


def _quote(messages: Sequence[Mapping[str, Any]]) -> str:
    """The first words of the first sources, each cited."""
    shown = _SOURCE.finditer(messages[-1]["content"])
    quoted = [(" ".join(source["text"].split()[:QUOTED_WORDS]), source["alias"]) for source in shown]
    return " ".join(f"{words.rstrip('.')} [{alias}]." for words, alias in quoted[:QUOTED_SOURCES])


async def _search(client: RAGClient, asked: Sequence[str]) -> list[float]:
    """Seconds of each search, one after the other."""
    seconds = []
    for question in asked:
        started = time.perf_counter()
        await client.query(question)
        seconds.append(time.perf_counter() - started)
    return seconds


async def _ask(
    client: RAGClient, asked: Sequence[str], options: AnswerOptions, ollama: ScriptedOllama
) -> list[_Answered]:
    """One after the other, as one client does, so that what the model server did meanwhile was for this answer."""
    answered = []
    for question in asked:
        before_s, started = ollama.spent_s, time.perf_counter()
        answer = await client.answer(question, **options)
        seconds = time.perf_counter() - started
        await ollama.until(lambda: not ollama.in_hand)
        sources = answer.context_chunks_used
        answered.append(_Answered(seconds, ollama.spent_s - before_s, sources, answer.grounded))
    return answered


def _figures(label: str, answered: Sequence[_Answered], *, cpu_s: float, p95_ms: float | None) -> list[Figure]:
    """Raises: DatsError: hardly anything was answered, so that the pipeline was not measured."""
    cited = statistics.fmean(each.cited for each in answered)
    if cited < LEAST_CITED:
        raise DatsError(f"{label}: only {cited:.0%} of the answers cite a source")
    overhead_s = [each.seconds - each.model_s for each in answered]
    limits_ms = {} if p95_ms is None else {95.0: p95_ms}
    return [
        *latencies("answers", label, overhead_s, 50, 95, limits_ms=limits_ms),
        Figure(
            "answers", f"{label}: CPU an answer", cpu_s / len(answered) * 1e3, "ms", note="replica, engine and ledger"
        ),
        Figure("answers", f"{label}: sources an answer", statistics.fmean(e.sources for e in answered), note="mean"),
    ]
