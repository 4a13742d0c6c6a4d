"""Which adapter a setting means: the one place where a URL becomes an object, for both services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dats_common.errors import BrokerUnavailable, ConfigurationError
from dats_common.fingerprint import fingerprint
from dats_common.ports import (
    Bus,
    Encoder,
    Evidence,
    Generator,
    Index,
    KeyStore,
    OperatorsBus,
    OperatorsIndex,
    OperatorsLedger,
    Owners,
    Subscription,
    TokenCounter,
    TokenVerifier,
)
from dats_common.records import Delivery, Drafted
from dats_common.settings import Settings
from dats_common.telemetry.logs import log

if TYPE_CHECKING:
    from dats_common.adapters.qdrant import Layout
    from dats_common.adapters.sql.row_security import Access, Acting
    from dats_common.telemetry.tracing.spans import Tracing

DEFAULT_MODEL = "all-MiniLM-L6-v2"


def ledger_url(settings: Settings) -> str:
    """The ledger's URL: the one that is set, else SQLite under the data directory."""
    return settings.sql.url.get_secret_value() or f"sqlite:///{settings.data_dir / 'ledger.db'}"


def engine_dir(settings: Settings) -> Path:
    """Where the embedded Qdrant engine keeps its collections."""
    return settings.data_dir / "qdrant"


def bus_file(settings: Settings) -> Path:
    """The embedded broker's queue. A file of its own: it must not wait for the ledger's write lock, nor hold it."""
    return settings.data_dir / "bus.db"


@asynccontextmanager
async def open_tracing(settings: Settings, *, role: str) -> AsyncIterator[Tracing | None]:
    """Spans of this process, or None where no collector is set: nothing is loaded or wrapped then."""
    if not settings.telemetry.collector:
        yield None
        return
    from dats_common.telemetry.tracing.export import open_tracing as open_spans

    async with open_spans(settings.telemetry, role=role) as tracing:
        yield tracing


def ledger_system(settings: Settings) -> str:
    """The database under the ledger as traces name it."""
    return "sqlite" if ledger_url(settings).startswith("sqlite") else "postgresql"


def broker_system(settings: Settings) -> str:
    """The broker as traces name it."""
    return "dats_sqlite" if settings.rabbitmq.is_embedded else "rabbitmq"


@asynccontextmanager
async def open_ledger(settings: Settings, *, acting: Acting = "writer") -> AsyncIterator[OperatorsLedger]:
    """The ledger, migrated. Raises: ConfigurationError, LedgerUnavailable.

    Args:
        acting: on PostgreSQL `query` sees one tenant at a time and what is public, `writer` all tenants.
    """
    from dats_common.adapters.sql.ledger import open_ledger as open_sql_ledger

    access = _access(settings, acting)
    async with open_sql_ledger(ledger_url(settings), timeout_s=settings.sql.timeout_s, access=access) as ledger:
        yield ledger


async def migrate_ledger(settings: Settings) -> str:
    """Bring the schema and PostgreSQL's roles up to date. Returns the version.

    Raises: ConfigurationError, LedgerUnavailable.
    """
    from dats_common.adapters.sql.engine import migrate

    url = settings.sql.migration_url.get_secret_value() or ledger_url(settings)
    return await migrate(url, timeout_s=settings.sql.timeout_s)


async def back_up_ledger(settings: Settings, target: Path) -> int:
    """Copy the embedded ledger; the copy's size in bytes. Raises: ConfigurationError, LedgerUnavailable."""
    from dats_common.adapters.sql.backup import copy_file

    if not settings.sql.is_embedded:
        raise ConfigurationError(
            'the ledger is on PostgreSQL: use pg_dump as a superuser; docs/runbook.md, "Backup", has the commands'
        )
    source = settings.data_dir / "ledger.db"
    return await asyncio.to_thread(copy_file, source, target, timeout_s=settings.sql.timeout_s)


def _access(settings: Settings, acting: Acting) -> Access:
    from dats_common.adapters.sql.connecting import is_local
    from dats_common.adapters.sql.row_security import Access

    return Access(
        acting,
        migration_url=settings.sql.migration_url.get_secret_value() or None,
        # As with authentication: what one machine may do for ease, a network may not unless somebody says so.
        login_may_own=settings.sql.allow_owner or is_local(ledger_url(settings)),
    )


@asynccontextmanager
async def open_key_store(settings: Settings, *, acting: Acting = "writer") -> AsyncIterator[KeyStore]:
    """API keys and the audit, in the ledger's database. Raises: ConfigurationError, LedgerUnavailable."""
    from dats_common.adapters.sql.identity import open_key_store as open_sql_key_store

    access = _access(settings, acting)
    async with open_sql_key_store(ledger_url(settings), timeout_s=settings.sql.timeout_s, access=access) as keys:
        yield keys


@asynccontextmanager
async def open_evidence(settings: Settings, *, acting: Acting = "writer") -> AsyncIterator[Evidence]:
    """Answers and what they stand on, in the ledger's database. Raises: ConfigurationError, LedgerUnavailable."""
    from dats_common.adapters.sql.evidence import open_evidence as open_sql_evidence

    access = _access(settings, acting)
    async with open_sql_evidence(ledger_url(settings), timeout_s=settings.sql.timeout_s, access=access) as evidence:
        yield evidence


@asynccontextmanager
async def open_owners(settings: Settings, *, acting: Acting = "writer") -> AsyncIterator[Owners]:
    """Owners of tags, in the ledger's database. Raises: ConfigurationError, LedgerUnavailable."""
    from dats_common.adapters.sql.owners import open_owners as open_sql_owners

    access = _access(settings, acting)
    async with open_sql_owners(ledger_url(settings), timeout_s=settings.sql.timeout_s, access=access) as owners:
        yield owners


@asynccontextmanager
async def open_generator(
    settings: Settings, *, spent: Callable[[Drafted], None] = lambda _: None
) -> AsyncIterator[Generator]:
    """What writes answers. A model server that is away stops no start: answers say so, and search needs none.

    Args:
        spent: told of the tokens of each call of a model.
    """
    from dats_common.adapters.extractive import ExtractiveGenerator
    from dats_common.adapters.ollama.generator import Timeouts, open_ollama

    answers = settings.answers
    if answers.generator == "extractive":
        yield ExtractiveGenerator()
        return
    timeouts = Timeouts(
        total_s=answers.timeout_s, first_token_s=answers.first_token_timeout_s, rating_s=answers.rating_timeout_s
    )
    async with open_ollama(
        answers.ollama_base_url,
        timeouts=timeouts,
        concurrent=answers.concurrent,
        queue=answers.waiting,
        keep_alive_s=answers.keep_alive_s,
        spent=spent,
    ) as generator:
        yield generator


def build_fallback(settings: Settings) -> Generator | None:
    """What writes answers while the model server is away; None: nothing does."""
    from dats_common.adapters.extractive import ExtractiveGenerator

    quotes = settings.answers.fallback == "extractive"
    on_a_laptop = settings.answers.fallback == "auto" and settings.sql.is_embedded
    return ExtractiveGenerator() if quotes or on_a_laptop else None


def build_token_counter(settings: Settings, encoder: Encoder) -> TokenCounter:
    """Counts prompts before they are sent. Raises: ConfigurationError: a tokenizer's file cannot be used."""
    from dats_common.adapters.token_counters import build_token_counter as build_counter

    files = {name: Path(each.tokenizer) for name, each in settings.answers.models.items() if each.tokenizer}
    if _is_remote(settings):
        # It has no tokenizer to lend, only an estimate on the high side: prompts would look as if they had been cut.
        return build_counter(files, estimate=lambda _: 0)
    return build_counter(files, estimate=lambda text: len(encoder.token_spans(text)))


def build_token_verifier(settings: Settings) -> TokenVerifier | None:
    """What reads tokens, or None where no provider is set. Raises: ConfigurationError: its keys cannot be used."""
    tokens = settings.auth.jwt
    if not tokens.is_set:
        return None
    from dats_common.adapters.jwt_tokens import build_jwt_verifier

    return build_jwt_verifier(
        algorithm=tokens.algorithm,
        key_file=tokens.key_file,
        secret=tokens.secret.get_secret_value(),
        issuer=tokens.issuer,
        audience=tokens.audience,
        leeway_s=tokens.leeway_s,
    )


@asynccontextmanager
async def open_index(settings: Settings) -> AsyncIterator[OperatorsIndex]:
    """The Qdrant server that is set, else the embedded engine that runs on the data directory.

    Raises: ConfigurationError: nothing is set and no engine runs there.
    """
    from dats_common.adapters.qdrant import open_qdrant

    store = settings.qdrant
    host, grpc_port = store.host, store.grpc_port
    if store.is_embedded:
        host, grpc_port = "127.0.0.1", running_engine_port(settings)
    async with open_qdrant(
        collection=store.collection,
        host=host or None,
        grpc_port=grpc_port,
        rest_port=store.port,
        url=store.url or None,
        api_key=store.api_key.get_secret_value() or None,
        timeout_s=store.timeout_s,
        layout=_layout(settings),
    ) as index:
        yield index


def _layout(settings: Settings) -> Layout:
    from dats_common.adapters.qdrant import Layout

    wanted = settings.qdrant.layout
    return Layout(
        shard_number=wanted.shard_number,
        replication_factor=wanted.replication_factor,
        write_consistency_factor=wanted.write_consistency_factor,
        int8=wanted.quantization == "int8",
        on_disk_vectors=wanted.on_disk_vectors,
        on_disk_payload=wanted.on_disk_payload,
        strict=wanted.strict_mode,
    )


def running_engine_port(settings: Settings) -> int:
    """Where the engine that owns the data directory listens. Raises: ConfigurationError: none does."""
    from dats_common.embedded.ownership import served_port

    port = served_port(engine_dir(settings))
    if port is None:
        raise ConfigurationError(
            f"no Qdrant is set and no engine runs on {engine_dir(settings)}: "
            "set QDRANT_HOST, start `dats-rag engine`, or start everything with `dats-rag up`"
        )
    return port


async def prepare_index(index: Index, encoder: Encoder) -> None:
    """Create the collection or check that `encoder` speaks its vectors. Raises: ConfigurationError."""
    await index.prepare(await fingerprint(encoder))


@asynccontextmanager
async def open_encoder(settings: Settings, *, for_writer: bool) -> AsyncIterator[Encoder]:
    """The encoder that the settings name.

    `auto`: a gateway that is set; else a promised device (`cuda:N`) or another model than the packaged one asks for
    sentence-transformers; the rest is served without PyTorch.

    Raises: ConfigurationError: the model, the library, the promised GPU or the gateway's key is missing;
        EncoderUnavailable: the gateway or Ollama is away.
    """
    is_remote = _is_remote(settings)
    opening = _remote_encoder(settings) if is_remote else _local_encoder(settings, for_writer=for_writer)
    async with opening as encoder:
        yield encoder


def _is_remote(settings: Settings) -> bool:
    chosen = settings.embedding.backend
    return chosen in ("gateway", "ollama") or (chosen == "auto" and bool(settings.lightrag.embedding_endpoint))


def _local_encoder(settings: Settings, *, for_writer: bool) -> AbstractAsyncContextManager[Encoder]:
    from dats_common.adapters.encoder_openvino import open_openvino_encoder
    from dats_common.adapters.encoder_st import open_sentence_transformers_encoder

    chosen, device = settings.embedding, settings.embedding.device
    model = settings.lightrag.embedding_model
    if chosen.dimensions:
        raise ConfigurationError("embedding.dimensions is for a model on the gateway or Ollama: set it to 0")
    # The GPU is the writer's: a replica on the same machine encodes single queries on the CPU.
    wants_gpu = for_writer and device.startswith("cuda")
    packaged = model == DEFAULT_MODEL
    if chosen.backend == "openvino" and not packaged:
        raise ConfigurationError(
            f"embedding.backend openvino carries only {DEFAULT_MODEL}; for {model!r} set it to sentence-transformers"
        )
    if chosen.backend == "openvino" and wants_gpu:
        raise ConfigurationError(
            f"embedding.device promises {device!r}, but embedding.backend openvino computes on the CPU: "
            "set it to sentence-transformers or auto"
        )
    if chosen.backend == "openvino" or (chosen.backend == "auto" and packaged and not wants_gpu):
        return open_openvino_encoder(threads=chosen.threads or None, background=for_writer)
    return open_sentence_transformers_encoder(
        model, device=device if wants_gpu else "cpu", batch_size=chosen.micro_batch
    )


def _remote_encoder(settings: Settings) -> AbstractAsyncContextManager[Encoder]:
    from dats_common.adapters.encoder_http import Remote, open_gateway_encoder, open_ollama_encoder

    chosen, index = settings.embedding, settings.lightrag
    if chosen.device:
        raise ConfigurationError("embedding.device is for a model that runs here, not on the gateway or Ollama")
    remote = Remote(
        model=index.embedding_model,
        # The gateway's key is for the gateway alone, not for the Ollama that writes answers.
        api_key=(index.embedding_endpoint and index.embedding_api_key.get_secret_value()) or None,
        dimensions=chosen.dimensions,
        window_tokens=chosen.window_tokens,
        query_prefix=chosen.query_prefix,
        document_prefix=chosen.document_prefix,
        batch_size=chosen.micro_batch,
        timeout_s=chosen.timeout_s,
    )
    if chosen.backend == "ollama":
        return open_ollama_encoder(index.embedding_endpoint or settings.answers.ollama_base_url, remote)
    if not index.embedding_endpoint:
        raise ConfigurationError("embedding.backend is gateway, but no gateway is set: set MODEL_GATEWAY_URL")
    return open_gateway_encoder(index.embedding_endpoint, remote)


@asynccontextmanager
async def open_bus(settings: Settings, *, name: str, patient: bool = True) -> AsyncIterator[OperatorsBus]:
    """The broker that is set, else the durable queue under the data directory.

    Args:
        patient: wait for a broker that is away, saying so; otherwise raise after the settings' connect timeout.

    Raises: BrokerUnavailable, ConfigurationError.
    """
    from dats_common.adapters.rabbitmq import open_rabbitmq
    from dats_common.adapters.sqlite_bus import open_sqlite_bus

    broker = settings.rabbitmq
    if broker.is_embedded:
        async with open_sqlite_bus(bus_file(settings)) as queue:
            yield queue
        return
    async with open_rabbitmq(
        broker.amqp_url,
        name=name,
        publish_timeout_s=broker.publish_timeout_s,
        connect_timeout_s=None if patient else broker.connect_timeout_s,
        heartbeat_s=broker.heartbeat_s,
        report=_waiting(name) if patient else lambda _waited_s, _error: None,  # its caller hears of it by the error
    ) as bus:
        yield bus


def _waiting(name: str) -> Callable[[float, BrokerUnavailable], None]:
    def report(waited_s: float, error: BrokerUnavailable) -> None:
        log(name).warning("broker_waited", waited_s=round(waited_s, 1), detail=str(error))

    return report


@asynccontextmanager
async def open_bus_in_background(settings: Settings, *, name: str) -> AsyncIterator[Bus]:
    """A bus that may not be there yet: a replica answers queries and commits taints without any broker."""
    later = _BusLater()
    opened = asyncio.Event()
    stop = asyncio.Event()

    async def hold() -> None:
        try:
            async with open_bus(settings, name=name) as bus:
                later.bus = bus
                opened.set()
                await stop.wait()
        except (BrokerUnavailable, ConfigurationError) as error:
            later.reason = str(error)
            log(name).error("broker_refused", detail=str(error))
        finally:
            later.bus = None
            opened.set()

    task = asyncio.create_task(hold(), name="bus")
    try:
        # Usually there at once: then the first request finds it.
        await asyncio.wait([asyncio.ensure_future(opened.wait())], timeout=_FIRST_CONNECT_S)
        yield later
    finally:
        stop.set()
        if not opened.is_set():
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_FIRST_CONNECT_S = 2.0


class _BusLater:
    """`ports.Bus` that says "away" until the real one has connected."""

    def __init__(self) -> None:
        self.bus: Bus | None = None
        self.reason = "not connected yet"

    def _ready(self) -> Bus:
        if self.bus is None:
            raise BrokerUnavailable(f"the broker is away: {self.reason}")
        return self.bus

    async def publish(self, routing_key: str, body: Mapping[str, Any], *, event_id: str) -> None:
        await self._ready().publish(routing_key, body, event_id=event_id)

    async def command(self, body: Mapping[str, Any], *, event_id: str) -> None:
        await self._ready().command(body, event_id=event_id)

    def subscribe(self, queue: str, *, prefetch: int) -> AbstractAsyncContextManager[Subscription]:
        return self._ready().subscribe(queue, prefetch=prefetch)

    def watch(self, *routing_keys: str) -> AbstractAsyncContextManager[AsyncIterator[Delivery]]:
        return self._ready().watch(*routing_keys)

    async def depth(self, queue: str) -> int:
        return await self._ready().depth(queue)

    async def ping(self) -> None:
        await self._ready().ping()
