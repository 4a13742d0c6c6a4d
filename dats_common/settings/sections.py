"""The settings as frozen sections, with spec 1's keys. A section is handed down; nobody reads the environment again.

A field's `Env` is the variable that overrides it; `Reserved` marks what is accepted and checked but not yet used.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, field_validator, model_validator


@dataclass(frozen=True, slots=True)
class Env:
    """The environment variable that sets a field."""

    name: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """Accepted, not yet used; `by` is what will use it."""

    by: str


Port = Annotated[int, Field(ge=1, le=65_535)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Ratio = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]

CHAT = Reserved("GET /search and POST /chat")


class Section(BaseModel):
    """A misspelt key stops the start."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, protected_namespaces=())


class Sql(Section):
    """The ledger."""

    url: Annotated[SecretStr, Env("DATS_SQL_URL")] = Field(
        SecretStr(""), description="SQLAlchemy URL, such as postgresql+asyncpg://...; empty: SQLite in data_dir"
    )
    timeout_s: Seconds = Field(10.0, description="longest wait for a connection or a statement")
    migration_url: Annotated[SecretStr, Env("DATS_SQL_MIGRATION_URL")] = Field(
        SecretStr(""), description="PostgreSQL: the owner's URL, which changes the schema; empty: sql.url does that too"
    )
    allow_owner: Annotated[bool, Env("DATS_SQL_ALLOW_OWNER")] = Field(
        False,
        description="start although the login of a PostgreSQL on another machine owns the tables or is a superuser",
    )

    @property
    def is_embedded(self) -> bool:
        """Whether the ledger is SQLite of our own."""
        return not self.url.get_secret_value()


class RabbitMQ(Section):
    """The broker."""

    host: Annotated[str, Env("RABBITMQ_HOST")] = Field("", description="empty: a durable queue in data_dir")
    port: Annotated[Port, Env("RABBITMQ_PORT")] = Field(5672, description="AMQP port")
    url: Annotated[SecretStr, Env("DATS_RABBITMQ_URL")] = Field(
        SecretStr(""),
        description="amqp://user:password@host:port/vhost; of a cluster, its nodes' URLs with commas between; "
        "wins over host and port",
    )
    exchange: Literal["task.events"] = Field("task.events", description="fixed: other teams publish to it")
    queue: Literal["rag-service-events"] = Field("rag-service-events", description="fixed: dashboards watch it")
    heartbeat_s: Annotated[int, Field(ge=1, le=600)] = Field(
        10, description="a hung process is replaced after 2.5 to 2.9 times this"
    )
    connect_timeout_s: Seconds = Field(10.0, description="longest wait for one attempt to connect")
    publish_timeout_s: Seconds = Field(10.0, description="longest wait for the broker's confirm")

    @property
    def is_embedded(self) -> bool:
        """Whether no broker was named."""
        return not (self.host or self.url.get_secret_value())

    @property
    def amqp_url(self) -> str:
        """Where to connect; empty when embedded. Contains the password."""
        if self.url.get_secret_value() or not self.host:
            return self.url.get_secret_value()
        return f"amqp://guest:guest@{self.host}:{self.port}/"


class Events(Section):
    """How events are consumed."""

    rabbitmq: RabbitMQ = RabbitMQ()
    skew_s: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = Field(
        60.0, description="a taint covers versions up to this much later: clocks differ, over-invalidating is safe"
    )
    watchdog_s: Seconds = Field(30.0, description="a writer without progress for this long ends itself")
    drain_s: Seconds = Field(20.0, description="after SIGTERM, longest time to finish what is in hand")
    sweep_interval_s: Seconds = Field(60.0, description="between two sweeps of dead points")


class CollectionLayout(Section):
    """How a new collection is laid out over nodes and memory; the defaults are one machine's."""

    shard_number: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="parts that the nodes share; an existing collection keeps its own, as with all of these"
    )
    replication_factor: Annotated[int, Field(ge=1, le=16)] = Field(1, description="copies of each shard")
    write_consistency_factor: Annotated[int, Field(ge=1, le=16)] = Field(
        1, description="copies that have a write before it is done; at most replication_factor"
    )
    quantization: Literal["none", "int8"] = Field(
        "none", description="int8: search by small vectors in memory, decide by the exact ones"
    )
    on_disk_vectors: bool = Field(False, description="leave the exact vectors on disk; with int8")
    on_disk_payload: bool = Field(True, description="leave the payload on disk; its indexes are in memory")
    strict_mode: bool = Field(False, description="the server refuses unindexed filters and huge limits and batches")

    @model_validator(mode="after")
    def _has_the_copies(self) -> CollectionLayout:
        if self.write_consistency_factor > self.replication_factor:
            raise ValueError("write_consistency_factor must not exceed replication_factor")
        return self


class VectorStore(Section):
    """Qdrant."""

    type: Literal["qdrant"] = Field("qdrant", description="the vector store")
    host: Annotated[str, Env("QDRANT_HOST")] = Field("", description="empty: the embedded engine in data_dir")
    port: Annotated[Port, Env("QDRANT_PORT")] = Field(6333, description="REST port")
    grpc_port: Annotated[Port, Env("QDRANT_GRPC_PORT")] = Field(6334, description="gRPC port, which we use")
    url: Annotated[str, Env("QDRANT_URL")] = Field("", description="http(s)://host:port; wins over host and port")
    api_key: Annotated[SecretStr, Env("QDRANT_API_KEY")] = Field(SecretStr(""), description="key of the server")
    collection: Annotated[str, Field(min_length=1, max_length=255), Env("QDRANT_COLLECTION")] = Field(
        "dats_embeddings", description="name of the collection"
    )
    timeout_s: Seconds = Field(10.0, description="longest wait for one call")
    layout: CollectionLayout = CollectionLayout()

    @field_validator("type", mode="before")
    @classmethod
    def _is_built(cls, value: object) -> object:
        if value == "faiss":
            raise ValueError("faiss is not offered; for local use keep 'qdrant' and leave host empty")
        return value

    @property
    def is_embedded(self) -> bool:
        """Whether no server was named."""
        return not (self.host or self.url)


class Chunking(Section):
    """How documents are cut."""

    strategy: Literal["semantic", "fixed", "sentence"] = Field(
        "semantic", description="where to cut: by structure and meaning, at whole words, or at sentence ends"
    )
    max_chunk_size: Annotated[int, Field(ge=16, le=8192)] = Field(
        500, description="tokens of the encoder; never more than the model's window"
    )
    overlap: Annotated[int, Field(ge=0, le=4096)] = Field(
        50, description="tokens shared by neighbours; shrinks with the chunk in a smaller window"
    )

    @model_validator(mode="after")
    def _moves_on(self) -> Chunking:
        if self.overlap >= self.max_chunk_size:
            raise ValueError("overlap must be smaller than max_chunk_size")
        return self


class LightRAG(Section):
    """The index."""

    working_dir: Annotated[str, Env("LIGHTRAG_WORKING_DIR")] = Field("", description="empty: data_dir/lightrag")
    embedding_model: Annotated[str, Field(min_length=1), Env("EMBEDDING_MODEL")] = Field(
        "all-MiniLM-L6-v2", description="the dense model; changing it needs `dats-rag reindex --recreate`"
    )
    embedding_endpoint: Annotated[str, Env("MODEL_GATEWAY_URL")] = Field(
        "",
        description="the model gateway that makes the vectors: the base URL of OpenAI's embeddings, its version "
        "included; empty: the model runs here",
    )
    embedding_api_key: Annotated[SecretStr, Env("MODEL_GATEWAY_API_KEY")] = Field(
        SecretStr(""), description="key of the model gateway"
    )
    vector_store: VectorStore = VectorStore()
    chunking: Chunking = Chunking()


class LegWeights(Section):
    """How much each leg of a hybrid search counts."""

    vector: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(0.58, description="of the vector leg")
    keyword: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(0.42, description="of the keyword leg")

    @model_validator(mode="after")
    def _weighs_something(self) -> Self:
        if not self.vector + self.keyword > 0:
            raise ValueError("vector and keyword cannot both be 0")
        return self


class Fusion(LegWeights):
    """How the legs of a hybrid search become one order. Source of the weights: docs/retrieval.md."""

    method: Literal["score", "rrf"] = Field("score", description="what is summed: scaled scores, or reciprocal ranks")
    domains: dict[str, LegWeights] = Field(
        {"code": LegWeights(vector=0.92, keyword=0.08)},
        description="other weights for requests whose domain begins so",
    )


class Reranking(Section):
    """A cross-encoder after fusion. Source of the figures: docs/retrieval.md."""

    enabled: bool = Field(False, description="load the cross-encoder; requests may then ask for it")
    model: Annotated[str, Field(min_length=1)] = Field(
        "cross-encoder/ms-marco-MiniLM-L-6-v2",
        description="the cross-encoder: a folder, or a name that an installed package or the hub's cache here has; "
        "nothing is downloaded",
    )
    max_pairs: Annotated[int, Field(ge=1, le=200)] = Field(10, description="passages that it reads for one query")
    weight: Ratio = Field(0.7, description="its share in the order, the rest is fusion's; 1: without fusion")
    parts_weight: Ratio = Field(
        0.25,
        description="share of the part of each passage that the embedding model finds nearest to the question, beside "
        "cross-encoder and fusion, which divide what is left; 0: no parts are encoded",
    )
    deadline_ms: Annotated[int, Field(ge=1, le=60_000)] = Field(
        1000, description="longest wait for it; then the answer keeps the order of fusion, and says so"
    )
    certain_lead: Ratio = Field(
        0.3,
        description="it reads nothing where both legs have the same first passage, or the others' fused scores are "
        "less than the first's by more than this share of it; 1: it always reads",
    )
    batch_size: Annotated[int, Field(ge=1, le=256)] = Field(8, description="pairs that run together; then others' turn")
    threads: Annotated[int, Field(ge=0, le=1024)] = Field(0, description="its CPU threads on OpenVINO; 0: all cores")
    domains: dict[str, bool] = Field(
        {"docs": True},
        description="whether hybrid searches for a domain that begins so are reranked unasked; the longest counts, and "
        "an empty name is for all",
    )


class Query(Section):
    """How queries are answered."""

    default_mode: Literal["vector", "keyword", "hybrid"] = Field("hybrid", description="when a request names none")
    default_max_tokens: Annotated[int, Field(ge=100, le=10_000)] = Field(
        2000, description="token budget of the context, when a request names none"
    )
    result_limit: Annotated[int, Field(ge=1, le=100)] = Field(10, description="sources, when a request names no top_k")
    min_similarity: Ratio = Field(
        0.35,
        description="a question is answered where one source is so similar (cosine) or has half of its terms; the "
        "others need half of that similarity",
    )
    candidates: Annotated[int, Field(ge=1, le=1000)] = Field(50, description="candidates of each leg before fusion")
    deadline_s: Seconds = Field(10.0, description="longest time for one query")
    embed_wait_s: Seconds = Field(20.0, description="POST /embed waits this long for the writer, then answers 202")
    fusion: Fusion = Fusion()
    reranking: Reranking = Reranking()


class Embedding(Section):
    """How texts become vectors, and how many may wait."""

    batch_size: Annotated[int, Field(ge=1, le=256)] = Field(10, description="events taken from the broker together")
    queue_max_size: Count = Field(1000, description="beyond it POST /embed answers 429")
    retry_attempts: Annotated[int, Field(ge=0, le=20)] = Field(3, description="before an event is a dead letter")
    backend: Literal["auto", "openvino", "sentence-transformers", "gateway", "ollama"] = Field(
        "auto",
        description="what runs the model; auto: the gateway if lightrag.embedding_endpoint is set, else openvino; on "
        "cuda or for another model sentence-transformers. ollama: the one at embedding_endpoint, else at "
        "answers.ollama_base_url",
    )
    dimensions: Annotated[int, Field(ge=0, le=65_536)] = Field(
        0, description="length of a vector that the gateway or Ollama is asked for; 0: as the model makes them"
    )
    window_tokens: Annotated[int, Field(ge=64, le=1_000_000)] = Field(
        512, description="tokens that a model of the gateway or Ollama reads; with another value chunks are cut anew"
    )
    query_prefix: Annotated[str, Field(max_length=200)] = Field(
        "", description="put before a query for the gateway or Ollama, where the model was trained so"
    )
    document_prefix: Annotated[str, Field(max_length=200)] = Field("", description="the same before each chunk")
    timeout_s: Seconds = Field(
        20.0, description="longest wait for the gateway or Ollama, tries included; keep it below events.watchdog_s"
    )
    device: Annotated[str, Field(pattern=r"^(|cpu|cuda(:\d+)?)$")] = Field(
        "",
        description="where the writer's model runs: cpu, or cuda:N among the GPUs that CUDA_VISIBLE_DEVICES leaves it; "
        "empty: the backend's choice",
    )
    threads: Annotated[int, Field(ge=0, le=1024)] = Field(0, description="CPU threads of the encoder; 0: all cores")
    micro_batch: Annotated[int, Field(ge=1, le=1024)] = Field(
        32, description="texts encoded together; on a GPU as many as its memory holds"
    )
    linger_ms: Annotated[int, Field(ge=0, le=10_000)] = Field(50, description="how long a batch waits to fill")


class Jwt(Section):
    """Tokens of an identity provider. One algorithm, fixed here: a token cannot choose how it is checked."""

    algorithm: Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "HS256"] = Field(
        "RS256", description="the only one that is accepted"
    )
    key_file: Annotated[str, Env("DATS_JWT_KEY_FILE")] = Field(
        "", description="the provider's public key (PEM) or keys (JWKS); empty and no secret: no tokens"
    )
    secret: Annotated[SecretStr, Env("DATS_JWT_SECRET")] = Field(
        SecretStr(""), description="shared secret of HS256, 32 bytes or more"
    )
    issuer: Annotated[str, Env("DATS_JWT_ISSUER")] = Field("", description="the `iss` that a token must have")
    audience: Annotated[str, Env("DATS_JWT_AUDIENCE")] = Field("", description="the `aud` that a token must have")
    leeway_s: Annotated[float, Field(ge=0, le=300, allow_inf_nan=False)] = Field(
        10.0, description="how much the provider's clock may differ"
    )

    @property
    def is_set(self) -> bool:
        """Whether tokens are accepted at all."""
        return bool(self.key_file or self.secret.get_secret_value())

    @model_validator(mode="after")
    def _can_be_checked(self) -> Jwt:
        if not self.is_set:
            return self
        if not (self.issuer and self.audience):
            raise ValueError("issuer and audience are needed, or a token for another service would be good here")
        secret = self.secret.get_secret_value()
        if (self.algorithm == "HS256") != bool(secret) or bool(secret) == bool(self.key_file):
            raise ValueError("HS256 takes a secret, every other algorithm a key_file; never both")
        if secret and len(secret.encode()) < 32:
            raise ValueError("a secret of HS256 has 32 bytes or more")  # Source: RFC 7518, section 3.2
        return self


class Auth(Section):
    """Who may call a query replica."""

    mode: Annotated[Literal["off", "required"], Env("DATS_AUTH_MODE")] = Field(
        "off", description="off: everyone is one principal of tenant `default`, for one machine"
    )
    allow_open: Annotated[bool, Env("DATS_AUTH_ALLOW_OPEN")] = Field(
        False, description="start with mode off on an address that other machines can reach"
    )
    requests_per_minute: Count = Field(
        600, description="of one key or token subject at one replica, unless the key has its own; 429 beyond"
    )
    api_key: Annotated[SecretStr, Env("DATS_API_KEY")] = Field(
        SecretStr(""), description="the key that commands such as `dats-rag search` send"
    )
    jwt: Jwt = Jwt()


class Server(Section):
    """The HTTP server of a query replica."""

    host: str = Field("127.0.0.1", description="0.0.0.0 to serve other machines")
    port: Annotated[Port, Env("PORT")] = Field(8000, description="HTTP port")
    body_limit_bytes: Annotated[int, Field(ge=1024, le=64 * 1024 * 1024)] = Field(
        1_048_576, description="longest request body; 413 beyond"
    )
    body_timeout_s: Seconds = Field(30.0, description="longest time for a body to arrive; 408 beyond")
    concurrent_requests: Annotated[int, Field(ge=1, le=10_000)] = Field(
        64, description="requests in hand at once; 503 beyond. Withdrawals have as many places of their own"
    )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


Sampler = Literal[
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
    "always_on",
    "always_off",
    "traceidratio",
]
"""Source: OpenTelemetry, "Environment Variable Specification"."""


class Telemetry(Section):
    """Metrics and traces. Other OTEL_* variables are read by OpenTelemetry itself."""

    writer_metrics_port: Annotated[int, Field(ge=0, le=65_535), Env("DATS_WRITER_METRICS_PORT")] = Field(
        0,
        description="the writer serves /metrics, /health/live and /health/ready here (a replica on its HTTP port); "
        "0: it does not",
    )

    log_level: Annotated[Literal["debug", "info", "warning", "error"], Env("DATS_LOG_LEVEL")] = Field(
        "info", description="of the service's own lines; libraries speak only from warning on"
    )
    otlp_endpoint: Annotated[str, Env("OTEL_EXPORTER_OTLP_ENDPOINT")] = Field(
        "", description="OpenTelemetry collector, such as http://jaeger:4317 (gRPC); empty: no traces"
    )
    otlp_traces_endpoint: Annotated[str, Env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")] = Field(
        "", description="another collector for traces"
    )
    otlp_protocol: Annotated[Literal["grpc"], Env("OTEL_EXPORTER_OTLP_PROTOCOL")] = Field(
        "grpc", description="how spans are sent; there is no other way"
    )
    traces_off: Annotated[bool, Env("OTEL_SDK_DISABLED")] = Field(
        False, description="no traces, whatever collector is set"
    )
    sampler: Annotated[Sampler, Env("OTEL_TRACES_SAMPLER")] = Field(
        "parentbased_always_on", description="which traces are recorded; parentbased: as the caller or publisher has it"
    )
    sampler_ratio: Annotated[Ratio, Env("OTEL_TRACES_SAMPLER_ARG")] = Field(
        1.0, description="share of the traces that the traceidratio samplers record"
    )
    service_name: Annotated[str, Env("OTEL_SERVICE_NAME")] = Field("rag-service", description="name in traces")

    @property
    def collector(self) -> str:
        """Where spans go; empty: nowhere."""
        return "" if self.traces_off else self.otlp_traces_endpoint or self.otlp_endpoint


class AnswerModel(Section):
    """A model of the allowlist. Source: spec 2 "Model Context Windows"."""

    context_window: Annotated[int, Field(ge=512, le=10_000_000)] = Field(description="tokens read and written together")
    max_response: Annotated[int, Field(ge=16, le=1_000_000)] = Field(description="tokens it may write")
    tokenizer: str = Field("", description="its tokenizer.json, for exact counts; empty: they are estimated")


class Grounding(Section):
    """Who looks at an answer's sentences besides the rules on words, numbers, names and denials. Source: spec 5, A2."""

    cross_encoder: str = Field(
        "",
        description="a cross-encoder, by folder or name: with a graph it runs on OpenVINO, else on PyTorch "
        "(extra `gpu`); empty: none",
    )
    judge: bool = Field(
        True, description="in strict answers the model that wrote them judges each sentence; it can only refuse it"
    )


class Answers(Section):
    """Generated answers. Source: spec 2 "Configuration"."""

    ollama_base_url: Annotated[str, Env("OLLAMA_BASE_URL")] = Field(
        "http://localhost:11434", description="Ollama server URL"
    )
    chat_model: Annotated[str, Env("CHAT_MODEL")] = Field("llama3.2", description="default LLM model")
    generator: Literal["ollama", "extractive"] = Field(
        "ollama", description="what writes answers; extractive needs no model: it quotes the best sentences"
    )
    fallback: Literal["auto", "none", "extractive"] = Field(
        "auto",
        description="while Ollama is away: none answers 503, extractive quotes; auto quotes if the ledger is embedded",
    )
    models: dict[str, AnswerModel] = Field(
        {
            "llama3.2": AnswerModel(context_window=8192, max_response=1024),
            "qwen3:8b": AnswerModel(context_window=32768, max_response=2048),
            "deepseek-r1:32b": AnswerModel(context_window=65536, max_response=4096),
        },
        description="the allowlist: each model with context_window, max_response, and maybe its tokenizer.json",
    )
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), Env("RAG_TEMPERATURE")] = Field(
        0.1, description="lower is more deterministic"
    )
    timeout_s: Annotated[Seconds, Env("RAG_TIMEOUT_SECONDS")] = Field(30.0, description="longest wait for the LLM")
    first_token_timeout_s: Seconds = Field(
        20.0, description="longest wait for the first token; a model that is loading takes it too"
    )
    rating_timeout_s: Seconds = Field(
        10.0, description="longest wait for the model's rating of its answer; and for its verdicts on a strict one"
    )
    grounding: Grounding = Grounding()
    concurrent: Count = Field(4, description="answers that one replica has written at the same time")
    waiting: Annotated[int, Field(ge=0, le=10_000)] = Field(16, description="answers that wait for that; 503 beyond")
    keep_alive_s: Annotated[int, Field(ge=0, le=86_400)] = Field(300, description="Ollama keeps a model loaded so long")
    confidence_threshold: Annotated[
        float, Field(ge=0, le=100, allow_inf_nan=False), Env("RAG_CONFIDENCE_THRESHOLD")
    ] = Field(60.0, description="least confidence in percent to cite")
    kept_days: Annotated[int, Field(ge=1, le=36_500)] = Field(
        365, description="answers are kept so long with what they stand on, then dropped"
    )
    least_answerability: Ratio = Field(
        0.44, description="below it the sources do not seem to hold an answer: it is routed; 0: never"
    )
    admin_email: Annotated[str, Env("RAG_ADMIN_EMAIL")] = Field(
        "admin@company.com", description="where questions without an owner go"
    )
    max_context_tokens: Annotated[Count, Env("RAG_MAX_CONTEXT_TOKENS")] = Field(
        3000, description="tokens of retrieved context"
    )
    max_history_tokens: Annotated[int, Field(ge=0), Env("RAG_MAX_HISTORY_TOKENS")] = Field(
        1000, description="tokens of chat history"
    )
    max_response_tokens: Annotated[Count, Env("RAG_MAX_RESPONSE_TOKENS")] = Field(
        1024, description="tokens of the LLM's response"
    )
    system_prompt_tokens: Annotated[int, Field(ge=0), Env("RAG_SYSTEM_PROMPT_TOKENS")] = Field(
        500, description="tokens kept for the system prompt"
    )
    min_similarity_score: Annotated[Ratio, Env("RAG_MIN_SIMILARITY_SCORE")] = Field(
        0.3, description="least cosine similarity of a cited chunk"
    )
    max_chunks_per_doc: Annotated[Count, Env("RAG_MAX_CHUNKS_PER_DOC")] = Field(3, description="chunks of one document")
    total_context_chunks: Annotated[Count, Env("RAG_TOTAL_CONTEXT_CHUNKS")] = Field(
        5, description="chunks of all documents"
    )
    dedup_candidates_cap: Annotated[Count, Env("RAG_DEDUP_CANDIDATES_CAP")] = Field(
        15, description="candidates compared for duplicates"
    )
    chunk_overlap_threshold: Annotated[Ratio, Env("RAG_CHUNK_OVERLAP_THRESHOLD")] = Field(
        0.9, description="Jaccard similarity that makes a duplicate"
    )


class Standard(Section):
    """Crawled help centres. Source: spec 5 "Configuration (.env)"."""

    allowlist_domains: Annotated[str, Env("RAG_ALLOWLIST_DOMAINS"), CHAT] = Field(
        "", description="hosts that may be crawled, comma-separated"
    )
    crawl_start_urls: Annotated[str, Env("RAG_CRAWL_START_URLS"), CHAT] = Field(
        "", description="where a crawl begins, comma-separated"
    )
    max_pages: Annotated[Count, Env("RAG_MAX_PAGES"), CHAT] = Field(500, description="pages of one crawl")
    chunk_min_tokens: Annotated[Count, Env("RAG_CHUNK_MIN_TOKENS"), CHAT] = Field(800, description="least chunk")
    chunk_max_tokens: Annotated[Count, Env("RAG_CHUNK_MAX_TOKENS"), CHAT] = Field(1200, description="largest chunk")
    chunk_overlap: Annotated[int, Field(ge=0), Env("RAG_CHUNK_OVERLAP"), CHAT] = Field(150, description="overlap")
    embedding_backend: Annotated[str, Env("RAG_EMBEDDING_BACKEND"), CHAT] = Field("", description="such as ollama")
    embedding_model: Annotated[str, Env("RAG_EMBEDDING_MODEL"), CHAT] = Field(
        "", description="such as nomic-embed-text:latest"
    )
    index_type: Annotated[str, Env("RAG_INDEX_TYPE"), CHAT] = Field("flat", description="kind of index")
    top_k: Annotated[Count, Env("RAG_TOP_K"), CHAT] = Field(5, description="results")
    top_k_raw: Annotated[Count, Env("RAG_TOP_K_RAW"), CHAT] = Field(50, description="candidates")
    use_bm25: Annotated[bool, Env("RAG_USE_BM25"), CHAT] = Field(False, description="add the keyword leg")
    p95_search_ms: Annotated[Count, Env("RAG_P95_SEARCH_MS"), CHAT] = Field(300, description="latency budget")


class Settings(Section):
    """Everything that can be set. Nothing set: the embedded default, everything under `data_dir`."""

    data_dir: Annotated[Path, Env("DATS_DATA_DIR")] = Field(
        Path("data"), description="where the embedded ledger and engine keep their files"
    )
    sql: Sql = Sql()
    lightrag: LightRAG = LightRAG()
    query: Query = Query()
    embedding: Embedding = Embedding()
    events: Events = Events()
    auth: Auth = Auth()
    server: Server = Server()
    telemetry: Telemetry = Telemetry()
    answers: Answers = Answers()
    standard: Standard = Standard()

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @property
    def rabbitmq(self) -> RabbitMQ:
        """The broker's section, which spec 1 keeps under events."""
        return self.events.rabbitmq

    @property
    def qdrant(self) -> VectorStore:
        """The vector store's section, which spec 1 keeps under lightrag."""
        return self.lightrag.vector_store

    @property
    def working_dir(self) -> Path:
        """LightRAG's directory."""
        return Path(self.lightrag.working_dir) if self.lightrag.working_dir else self.data_dir / "lightrag"
