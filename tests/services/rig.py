"""A writer and a replica within one event loop, on the twins and a SQLite ledger, whose parts fail on demand."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from dats_common.adapters.memory_bus import MemoryBus
from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.memory_index import MemoryIndex
from dats_common.adapters.memory_indexer import MemoryIndexer
from dats_common.adapters.sql.evidence import open_evidence
from dats_common.adapters.sql.ledger import open_ledger
from dats_common.adapters.sql.owners import open_owners
from dats_common.contracts.api import SearchMode
from dats_common.contracts.topology import ARTIFACT_TAINTED, DEAD_LETTERS_QUEUE, PUBLISHED_QUEUE, TASK_VALIDATED
from dats_common.domain.budget import BudgetRules, ModelLimits
from dats_common.domain.fusion import FusionRules
from dats_common.domain.model import ArtifactKey
from dats_common.domain.quality import QualityRules
from dats_common.domain.tokens import CountBasis
from dats_common.errors import BrokerUnavailable, EncoderUnavailable, IndexUnavailable, LedgerUnavailable
from dats_common.fingerprint import fingerprint
from dats_common.maintenance.relay import Relay
from dats_common.maintenance.sweep import Sweeper
from dats_common.ports import Evidence, Generator, Guard, Ledger, Owners, Reranker
from dats_common.records import Assignment, Candidate, Drafted, Point
from dats_common.telemetry.guard import MeasuredEvidence, MeasuredGuard
from dats_common.telemetry.in_hand import MeasuredBus
from dats_common.telemetry.replica_metrics import QueryMetrics
from dats_common.telemetry.writer_metrics import WriterMetrics
from services.query.answer_bodies import body_of
from services.query.answering import LOOK_EVERY_S, AnswerEngine, AnswerRules
from services.query.app import build_app
from services.query.engine import QueryEngine
from services.query.gate import RateLimits
from services.query.identity import Authenticator, Everyone
from services.query.limits import HttpLimits
from services.query.reranking import RerankRules
from services.query.services import Errands, QueryDefaults, QueryLimits, QueryServices
from services.query.streams import Streams
from services.writer.consumer import Consumer, Limits
from services.writer.handlers import EventHandlers
from services.writer.leadership import Leadership
from services.writer.observer import MetricsObserver
from services.writer.pipeline import EmbeddingPipeline
from services.writer.progress import Progress

DEADLINE_S = 20.0
POISON = "POISON"
"""A document with this word breaks the encoder."""
BODY_LIMIT_BYTES = 1_048_576
HTTP_LIMITS = HttpLimits(body_bytes=BODY_LIMIT_BYTES, body_timeout_s=10.0, concurrent_requests=1000)


async def eventually(true: Callable[[], Awaitable[bool]], *, timeout_s: float = DEADLINE_S) -> None:
    """Poll until it holds. Raises: TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not await true():
            await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------------------------ parts that can fail


class Switch:
    """Something that can be away, and that can be held up."""

    def __init__(self) -> None:
        self.away = False
        self.open = asyncio.Event()
        self.open.set()
        self.reached = asyncio.Event()

    def hold(self) -> None:
        self.reached.clear()
        self.open.clear()

    def hold_the_next(self) -> None:
        """Let go of who is held up, and hold the one after it."""
        self.open.set()
        self.open = asyncio.Event()
        self.reached.clear()

    async def passed(self) -> None:
        self.reached.set()
        await self.open.wait()


class Index(MemoryIndex):
    """Counts what is stored; proposes `forged` candidates besides what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.switch = Switch()
        self.stored: list[list[Point]] = []
        self.storing = Switch()
        self.forged: list[Candidate] = []
        self.searches = 0

    def _check(self) -> None:
        if self.switch.away:
            raise IndexUnavailable("the index does not answer")

    async def store(self, points: Sequence[Point]) -> None:
        self._check()
        if self.storing.away:
            raise IndexUnavailable("the index does not confirm")
        await self.storing.passed()
        self.stored.append(list(points))
        await super().store(points)

    async def search(self, **asked: Any) -> list[Candidate]:
        self._check()
        await self.switch.passed()
        self.searches += 1
        return self.forged + await super().search(**asked)

    async def remove(self, key: ArtifactKey, generations: Sequence[int]) -> None:
        self._check()
        await super().remove(key, generations)

    async def generations(self, keys: Sequence[ArtifactKey]) -> dict[ArtifactKey, set[int]]:
        self._check()
        return await super().generations(keys)

    async def count(self) -> int:
        self._check()
        return await super().count()

    async def ping(self) -> None:
        self._check()


class Encoder(MemoryEncoder):
    """Breaks on `POISON`; documents can be held up."""

    def __init__(self) -> None:
        super().__init__()
        self.documents = Switch()
        self.calls: list[list[str]] = []

    async def encode(self, texts: Sequence[str], *, kind: Literal["query", "document"]) -> Any:
        if kind == "document":
            self.calls.append(list(texts))
            if any(POISON in text for text in texts):
                raise EncoderUnavailable("the model cannot read this text")
            await self.documents.passed()
        return await super().encode(texts, kind=kind)


class Bus(MemoryBus):
    """A broker that can be away for publishers."""

    def __init__(self) -> None:
        super().__init__()
        self.switch = Switch()
        self.confirming = Switch()

    def _check(self) -> None:
        if self.switch.away:
            raise BrokerUnavailable("the broker is away")

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        self._check()
        await self.confirming.passed()
        await super().publish(routing_key, body, event_id=event_id)

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        self._check()
        await super().command(body, event_id=event_id)

    async def depth(self, queue: str) -> int:
        self._check()
        return await super().depth(queue)

    async def ping(self) -> None:
        self._check()

    def bodies(self, queue: str, event: str | None = None) -> list[Any]:
        """What lies in a queue, parsed."""
        return [json.loads(each.body) for each in self.queue(queue) if event in (None, each.event_type)]


class Model:
    """A generator whose answers a test writes: from the messages it is sent, piece by piece, or held up before one."""

    def __init__(self) -> None:
        self.respond: Callable[[Assignment], Sequence[str]] = lambda assignment: [
            f"{source.text} [{source.alias}]. " for source in assignment.sources
        ]
        self.rating: int | None = 100
        self.evaluated: Callable[[Assignment], int] = lambda assignment: sum(
            count_words(message.content) for message in assignment.messages
        )
        self.error: Exception | None = None
        self.missing: Exception | None = None
        self.writing = Switch()
        self.rated = Switch()
        self.assigned: list[Assignment] = []
        self.stopped = 0

    async def require(self, model: str) -> None:
        if self.missing:
            raise self.missing

    async def generate(self, assignment: Assignment) -> AsyncGenerator[str | Drafted]:
        self.assigned.append(assignment)
        try:
            for piece in self.respond(assignment):
                await self.writing.passed()
                yield piece
            if self.error:
                raise self.error
        except (GeneratorExit, asyncio.CancelledError):
            self.stopped += 1
            raise
        yield Drafted(assignment.model, prompt_tokens=self.evaluated(assignment), response_tokens=7)

    async def rate(self, assignment: Assignment, answer: str) -> int | None:
        await self.rated.passed()
        return self.rating

    def second_calls(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext(self)

    async def warm_up(self, model: str, *, window_tokens: int) -> None:
        await self.ping()

    async def ping(self) -> None:
        if self.missing:
            raise self.missing


def count_words(text: str) -> int:
    return len(text.split())


class Words:
    """A token counter that counts words, as `Model` does."""

    def count(self, text: str, *, model: str) -> int:
        return count_words(text)

    def basis(self, model: str) -> CountBasis:
        return CountBasis("words", 0.02)


ANSWER_RULES = AnswerRules(
    models={"llama3.2": ModelLimits(8192, 1024), "qwen3:8b": ModelLimits(32_768, 2048)},
    default_model="llama3.2",
    temperature=0.1,
    threshold=60,
    least_answerability=0.44,
    retrieval_s=5.0,
    admin_email="admin@example.org",
    budget=BudgetRules(),
    quality=QualityRules(),
)


class Away:
    """A port of which nothing answers."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        async def refuse(*_: Any, **__: Any) -> Any:
            raise self._error

        return refuse


LEDGER_AWAY: Any = Away(LedgerUnavailable("the ledger does not answer"))


# ------------------------------------------------------------------------------------------------------------- writer


@dataclass
class Rig:
    """One world: a bus, an index, a ledger, and as many writers and replicas as a test wants."""

    ledger: Ledger
    evidence: Evidence
    owners: Owners
    bus: Bus = field(default_factory=Bus)
    index: Index = field(default_factory=Index)
    encoder: Encoder = field(default_factory=Encoder)
    model: Model = field(default_factory=Model)
    reranker: Reranker | None = None
    rerank: RerankRules = field(default_factory=RerankRules)
    writer_metrics: WriterMetrics = field(default_factory=WriterMetrics)

    def consumer(
        self,
        leadership: Leadership,
        *,
        batch_size: int = 10,
        retry_attempts: int = 0,
        progress: Progress | None = None,
    ) -> Consumer:
        """A writer's loops, not running yet."""
        sweeper = Sweeper(ledger=self.ledger, index=self.index)
        indexer = MemoryIndexer(encoder=self.encoder, index=self.index, ledger=self.ledger)
        pipeline = EmbeddingPipeline(ledger=self.ledger, indexer=indexer, leadership=leadership, sweeper=sweeper)
        return Consumer(
            bus=MeasuredBus(self.bus, self.writer_metrics),
            ledger=self.ledger,
            handlers=EventHandlers(ledger=self.ledger, pipeline=pipeline, skew_s=60.0),
            leadership=leadership,
            relay=self.relay,
            sweeper=sweeper,
            evidence=self.evidence,
            progress=progress or Progress(),
            observer=MetricsObserver(self.writer_metrics),
            healthy=self._healthy,
            limits=Limits(batch_size=batch_size, linger_s=0.02, prefetch=40, retry_attempts=retry_attempts),
        )

    @asynccontextmanager
    async def writer(self, writer_id: str = "writer", **changes: Any) -> AsyncIterator[Leadership]:
        """A consumer that runs; it is stopped and its end awaited. `changes`: see `consumer`."""
        leadership = Leadership(self.ledger, writer_id)
        consumer = self.consumer(leadership, **changes)
        running = asyncio.create_task(consumer.run(), name=writer_id)
        try:
            yield leadership
        finally:
            stopping = asyncio.create_task(consumer.stop(timeout_s=DEADLINE_S), name="stop")
            await asyncio.sleep(0)  # it has begun: what is held up now is in hand, and nothing more is taken
            self.encoder.documents.open.set()
            self.index.storing.open.set()
            await stopping
            await asyncio.wait_for(running, DEADLINE_S)

    @property
    def relay(self) -> Relay:
        return Relay(ledger=self.ledger, bus=self.bus)

    async def _healthy(self) -> bool:
        return not (self.index.switch.away or self.bus.switch.away)

    # -- what producers send

    def validated(self, artifact_id: str, content: str, *, time: str | None = None, **metadata: Any) -> None:
        data = {"artifact_id": artifact_id, "content": content, "metadata": {"project_id": "p", **metadata}}
        self.bus.inject(TASK_VALIDATED, encoded({"data": data} | ({"time": time} if time else {})))

    def tainted(self, *artifact_ids: Any) -> None:
        self.bus.inject(ARTIFACT_TAINTED, encoded({"data": {"artifact_ids": list(artifact_ids)}}))

    # -- what became of it

    async def live(self, *artifact_ids: str) -> set[str]:
        """Those of them that are live."""
        found = set()
        async for generation, _ in self.ledger.live_chunks():
            found.add(generation.key.artifact_id)
        return found & {*artifact_ids}

    async def all_live(self, *artifact_ids: str) -> None:
        async def done() -> bool:
            return await self.live(*artifact_ids) == {*artifact_ids}

        await eventually(done)

    async def settled(self) -> None:
        """Nothing is queued, in hand or waiting for a retry."""

        async def done() -> bool:
            kept = {DEAD_LETTERS_QUEUE, PUBLISHED_QUEUE}
            return not any(queue for name, queue in self.bus._queues.items() if name not in kept)

        await eventually(done)

    async def dead_letters(self, count: int) -> list[Mapping[str, Any]]:
        """Headers of the dead letters, once there are so many."""

        async def done() -> bool:
            return len(self.bus.queue(DEAD_LETTERS_QUEUE)) >= count

        await eventually(done)
        return [message.headers for message in self.bus.queue(DEAD_LETTERS_QUEUE)]

    def published(self, event: str) -> list[dict[str, Any]]:
        """Data of the events that went out."""
        return [body["data"] for body in self.bus.bodies(PUBLISHED_QUEUE, event)]

    # -- replica

    def engine(self, *, ledger: Guard, index: Index) -> QueryEngine:
        return QueryEngine(
            encoder=self.encoder,
            index=index,
            ledger=ledger,
            min_similarity=0.3,
            least_candidates=50,
            fusion=FusionRules(),
            reranker=self.reranker,
            rerank=self.rerank,
        )

    def answers(
        self,
        engine: QueryEngine,
        *,
        ledger: Guard,
        evidence: Evidence | None = None,
        generator: Generator | None = None,
        fallback: Generator | None = None,
        rules: AnswerRules = ANSWER_RULES,
        look_every_s: float = LOOK_EVERY_S,
    ) -> AnswerEngine:
        return AnswerEngine(
            retrieval=engine,
            generator=generator or self.model,
            fallback=fallback,
            counter=Words(),
            ledger=ledger,
            evidence=evidence or self.evidence,
            owners=self.owners,
            rules=rules,
            body_of=body_of,
            look_every_s=look_every_s,
        )

    @asynccontextmanager
    async def replica(self, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
        """A client of one replica.

        `changes`: limits, or `ledger`, `bus`, `index`, `http`, `requests_per_minute`, `authenticator`, and of answers
        `generator`, `fallback` and `rules`, of its own; `tracing`, a `QueryTracing`.
        """
        http = changes.pop("http", HTTP_LIMITS)
        requests_per_minute = changes.pop("requests_per_minute", 1_000_000)
        authenticator: Callable[[QueryServices], Authenticator] | None = changes.pop("authenticator", None)
        ledger = changes.pop("ledger", self.ledger)
        bus = changes.pop("bus", self.bus)
        index = changes.pop("index", self.index)
        generator = changes.pop("generator", self.model)
        fallback = changes.pop("fallback", None)
        rules = changes.pop("rules", ANSWER_RULES)
        tracing = changes.pop("tracing", None)
        limits = {
            "deadline_s": 5.0,
            "answer_deadline_s": 5.0,
            "embed_wait_s": 5.0,
            "queue_max_size": 1000,
            "skew_s": 60.0,
            **changes,
        }
        errands = Errands()
        metrics = QueryMetrics()
        guard = MeasuredGuard(ledger, metrics)
        evidence = MeasuredEvidence(self.evidence, metrics)
        engine: Any = self.engine(ledger=guard, index=index)
        engine = tracing.retrieval(engine) if tracing else engine
        answers = self.answers(
            engine, ledger=guard, evidence=evidence, generator=generator, fallback=fallback, rules=rules
        )
        streams = Streams(engine=answers, ledger=guard, deadline_s=limits["answer_deadline_s"])
        services = QueryServices(
            engine=engine,
            answers=answers,
            streams=streams,
            generator=generator,
            model=rules.default_model,
            evidence=evidence,
            encoder=self.encoder,
            index=index,
            ledger=ledger,
            bus=bus,
            relay=Relay(ledger=ledger, bus=bus),
            sweeper=Sweeper(ledger=ledger, index=index),
            metrics=metrics,
            limits=QueryLimits(**limits),
            defaults=QueryDefaults(search_mode=SearchMode.HYBRID, max_tokens=2000, top_k=10, answer_chunks=5),
            index_memory=lambda: 1,
            disk_bytes=lambda: (50.0, 100.0),
            errands=errands,
            trace_requests=tracing.requests if tracing else None,
        )
        app = build_app(
            services,
            authenticator=authenticator(services) if authenticator else Everyone(),
            rates=RateLimits(requests_per_minute=requests_per_minute, clock=time.monotonic),
            limits=http,
        )
        # As a server: an error that no handler took is answered, and not raised into the test.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
            yield client
        await streams.close()
        await errands.finish(timeout_s=DEADLINE_S)


def encoded(message: Any) -> bytes:
    return json.dumps(message).encode()


@asynccontextmanager
async def open_rig(directory: Path) -> AsyncIterator[Rig]:
    url = f"sqlite:///{directory / 'ledger.db'}"
    async with open_ledger(url) as ledger, open_evidence(url) as evidence, open_owners(url) as owners:
        rig = Rig(ledger, evidence, owners)
        await rig.index.prepare(await fingerprint(rig.encoder))
        yield rig
