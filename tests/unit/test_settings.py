"""Settings: nothing set is the embedded default, the environment wins, and a misspelt name stops the start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from dats_common.errors import ConfigurationError
from dats_common.settings import Settings, describe, load_settings
from dats_common.settings.load import DEFAULT_FILES
from dats_common.settings.reference import reference

ROOT = Path(__file__).parents[2]

# Source: spec 1, "Configuration" and "Environment Variables".
SPEC_1_YAML = """
lightrag:
  working_dir: /data/lightrag
  embedding_model: nomic-embed-text
  embedding_endpoint: http://model-gateway:8000/api/v1
  vector_store:
    type: qdrant  # or faiss for local
    host: qdrant
    port: 6333
    collection: dats_embeddings
  chunking:
    strategy: semantic  # or fixed, sentence
    max_chunk_size: 500
    overlap: 50
query:
  default_mode: hybrid
  default_max_tokens: 2000
  result_limit: 10
  reranking:
    enabled: true
    model: cross-encoder/ms-marco-MiniLM-L-6-v2
embedding:
  batch_size: 10
  queue_max_size: 1000
  retry_attempts: 3
events:
  rabbitmq:
    host: rabbitmq
    port: 5672
    exchange: task.events
    queue: rag-service-events
"""
SPEC_1_ENVIRONMENT = {
    "LIGHTRAG_WORKING_DIR": "/data/lightrag",
    "EMBEDDING_MODEL": "nomic-embed-text",
    "MODEL_GATEWAY_URL": "http://model-gateway:8000/api/v1",
    "QDRANT_HOST": "qdrant",
    "QDRANT_PORT": "6333",
    "QDRANT_COLLECTION": "dats_embeddings",
    "RABBITMQ_HOST": "rabbitmq",
    "RABBITMQ_PORT": "5672",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://jaeger:4317",
    "OTEL_SERVICE_NAME": "rag-service",
}
# Source: spec 2, "Configuration"; spec 5, "Configuration (.env)".
SPEC_2_AND_5_ENVIRONMENT = {
    "OLLAMA_BASE_URL": "http://localhost:11434",
    "CHAT_MODEL": "llama3.2",
    "RAG_TEMPERATURE": "0.1",
    "RAG_TIMEOUT_SECONDS": "30",
    "RAG_CONFIDENCE_THRESHOLD": "60",
    "RAG_ADMIN_EMAIL": "admin@company.com",
    "RAG_MAX_CONTEXT_TOKENS": "3000",
    "RAG_MAX_HISTORY_TOKENS": "1000",
    "RAG_MAX_RESPONSE_TOKENS": "1024",
    "RAG_SYSTEM_PROMPT_TOKENS": "500",
    "RAG_MIN_SIMILARITY_SCORE": "0.3",
    "RAG_MAX_CHUNKS_PER_DOC": "3",
    "RAG_TOTAL_CONTEXT_CHUNKS": "5",
    "RAG_DEDUP_CANDIDATES_CAP": "15",
    "RAG_CHUNK_OVERLAP_THRESHOLD": "0.9",
    "RAG_ALLOWLIST_DOMAINS": "help.clockify.me,clockify.me",
    "RAG_CRAWL_START_URLS": "https://help.clockify.me/",
    "RAG_MAX_PAGES": "500",
    "RAG_CHUNK_MIN_TOKENS": "800",
    "RAG_CHUNK_MAX_TOKENS": "1200",
    "RAG_CHUNK_OVERLAP": "150",
    "RAG_EMBEDDING_BACKEND": "ollama",
    "RAG_EMBEDDING_MODEL": "nomic-embed-text:latest",
    "RAG_INDEX_TYPE": "flat",
    "RAG_TOP_K": "5",
    "RAG_TOP_K_RAW": "50",
    "RAG_USE_BM25": "false",
    "RAG_P95_SEARCH_MS": "300",
}


def yaml_file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "rag-service.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_nothing_set_means_the_embedded_engines() -> None:
    settings = load_settings(None, {})
    assert settings.sql.is_embedded
    assert settings.rabbitmq.is_embedded
    assert settings.rabbitmq.amqp_url == ""
    assert settings.qdrant.is_embedded
    assert settings.working_dir == Path("data/lightrag")


def test_the_file_that_comes_with_the_service_repeats_the_defaults() -> None:
    assert load_settings(DEFAULT_FILES[0], {}) == Settings()


def test_the_file_of_spec_1_is_taken_as_it_stands(tmp_path: Path) -> None:
    settings = load_settings(yaml_file(tmp_path, SPEC_1_YAML), {})
    assert settings.qdrant.host == "qdrant"
    assert settings.lightrag.embedding_model == "nomic-embed-text"
    assert settings.rabbitmq.amqp_url == "amqp://guest:guest@rabbitmq:5672/"
    assert settings.working_dir == Path("/data/lightrag")


def test_the_variables_of_spec_1_are_taken() -> None:
    settings = load_settings(None, SPEC_1_ENVIRONMENT)
    assert (settings.qdrant.host, settings.qdrant.port, settings.qdrant.collection) == (
        "qdrant",
        6333,
        "dats_embeddings",
    )
    assert (settings.rabbitmq.host, settings.rabbitmq.port) == ("rabbitmq", 5672)
    assert settings.lightrag.embedding_endpoint == "http://model-gateway:8000/api/v1"
    assert settings.telemetry.otlp_endpoint == "http://jaeger:4317"


def test_the_variables_of_specs_2_and_5_are_taken_and_those_of_spec_5_marked_as_not_yet_used() -> None:
    settings = load_settings(None, SPEC_2_AND_5_ENVIRONMENT)
    assert settings.answers.chat_model == "llama3.2"
    assert settings.standard.embedding_model == "nomic-embed-text:latest"
    assert settings.standard.use_bm25 is False
    taken = {each.origin for each in describe(settings)}
    assert taken >= {f"env {name}" for name in SPEC_2_AND_5_ENVIRONMENT}
    for name in SPEC_2_AND_5_ENVIRONMENT:
        [row] = [line for line in reference().splitlines() if f"| `{name}` |" in line]
        assert ("not yet used" in row) == ("`standard." in row)


def test_every_variable_of_the_contract_is_known() -> None:
    settings = load_settings(
        None,
        {
            "DATS_RABBITMQ_URL": "amqps://u:p@mq/v",
            "DATS_SQL_URL": "postgresql+asyncpg://u:p@db/dats",
            "DATS_DATA_DIR": "/srv/dats",
            "QDRANT_URL": "https://q:6334",
            "QDRANT_API_KEY": "key",
            "QDRANT_GRPC_PORT": "7334",
            "PORT": "9000",
            "OTEL_TRACES_SAMPLER": "always_on",
            "DATS_TEST_RABBITMQ_URL": "amqp://only-for-tests",
        },
    )
    assert settings.rabbitmq.amqp_url == "amqps://u:p@mq/v"
    assert settings.sql.url.get_secret_value() == "postgresql+asyncpg://u:p@db/dats"
    assert settings.data_dir == Path("/srv/dats")
    assert settings.qdrant.api_key.get_secret_value() == "key"
    assert settings.qdrant.grpc_port == 7334
    assert settings.server.port == 9000
    assert not (settings.sql.is_embedded)
    assert not (settings.rabbitmq.is_embedded)
    assert not (settings.qdrant.is_embedded)


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "lightrag: {vector_store: {host: from-file, port: 1111}}")
    settings = load_settings(file, {"QDRANT_HOST": "from-environment"})
    assert (settings.qdrant.host, settings.qdrant.port) == ("from-environment", 1111)


def test_an_empty_variable_counts_as_not_set(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "lightrag: {vector_store: {host: from-file}}")
    assert load_settings(file, {"QDRANT_HOST": "", "PORT": " "}).qdrant.host == "from-file"


def test_dats_config_names_the_file(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "query: {result_limit: 7}")
    assert load_settings(None, {"DATS_CONFIG": str(file)}).query.result_limit == 7


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        ("query: {resultlimit: 5}", "query.resultlimit", "query.result_limit"),
        ("quey: {result_limit: 5}", "quey", "query"),
        ("events: {rabbitmq: {hots: x}}", "events.rabbitmq.hots", "events.rabbitmq.host"),
    ],
)
def test_a_misspelt_key_stops_the_start_with_its_name_and_the_nearest(
    tmp_path: Path, text: str, wrong: str, right: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"unknown setting {wrong}; did you mean {right}\?"):
        load_settings(yaml_file(tmp_path, text), {})


@pytest.mark.parametrize(
    ("name", "nearest"), [("DATS_SQL_ULR", "DATS_SQL_URL"), ("RAG_TOPK", "RAG_TOP_K"), ("DATS_CONFG", "DATS_CONFIG")]
)
def test_a_misspelt_variable_stops_the_start_with_its_name_and_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}.*did you mean {nearest}\?"):
        load_settings(None, {name: "x"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server: {port: 70000}", "server.port"),
        ("query: {min_similarity: .nan}", "query.min_similarity"),
        ("query: {min_similarity: 1.5}", "query.min_similarity"),
        ("lightrag: {vector_store: {type: faiss}}", "faiss is not offered"),
        (
            "lightrag: {vector_store: {layout: {write_consistency_factor: 2}}}",
            "write_consistency_factor must not exceed replication_factor",
        ),
        ("lightrag: {chunking: {max_chunk_size: 50, overlap: 50}}", "overlap must be smaller"),
        ("query: {fusion: {vector: 0, keyword: 0}}", "cannot both be 0"),
        ("events: {rabbitmq: {exchange: mine}}", "task.events"),
        ("embedding: {device: tpu}", "embedding.device"),
        ("query: hybrid", "query holds settings"),
        ("- a list", "keys with values"),
        ("query: {", "not YAML"),
    ],
)
def test_a_wrong_value_stops_the_start_with_its_name(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_settings(yaml_file(tmp_path, text), {})


def test_a_wrong_variable_is_named_with_its_setting_and_not_quoted() -> None:
    with pytest.raises(ConfigurationError, match=r"server\.port \(env PORT\)") as caught:
        load_settings(None, {"PORT": "s3cret"})
    assert "s3cret" not in str(caught.value)


def test_a_secret_can_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sql_url"
    file.write_text("postgresql://dats_writer:pass@db/rag\n")
    settings = load_settings(None, {"DATS_SQL_URL_FILE": str(file)})
    assert settings.sql.url.get_secret_value() == "postgresql://dats_writer:pass@db/rag"
    described = next(each for each in describe(settings) if each.setting == "sql.url")
    assert (described.value, described.origin) == ("postgresql://dats_writer:***@db/rag", "env DATS_SQL_URL_FILE")


@pytest.mark.parametrize(
    ("text", "also", "said"),
    [
        (None, "", "DATS_SQL_URL_FILE names .*, which cannot be read: FileNotFoundError"),
        (" \n", "", "which is empty"),
        ("postgresql://a", "postgresql://b", "DATS_SQL_URL and DATS_SQL_URL_FILE are both set"),
    ],
)
def test_a_secret_that_its_file_does_not_hold_stops_the_start(
    tmp_path: Path, text: str | None, also: str, said: str
) -> None:
    file = tmp_path / "sql_url"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        load_settings(None, {"DATS_SQL_URL_FILE": str(file), "DATS_SQL_URL": also})


def test_only_a_secret_can_come_from_a_file() -> None:
    with pytest.raises(ConfigurationError, match="unknown variable DATS_CONFIG_FILE"):
        load_settings(None, {"DATS_CONFIG_FILE": "x"})


def test_a_missing_file_stops_the_start_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml"):
        load_settings(tmp_path / "nowhere.yaml", {})


def test_settings_cannot_be_changed() -> None:
    settings = load_settings(None, {})
    with pytest.raises(ValidationError):
        settings.query.result_limit = 3  # type: ignore[misc]


def test_describe_says_where_each_value_comes_from(tmp_path: Path) -> None:
    file = yaml_file(tmp_path, "query: {result_limit: 7}")
    described = {each.setting: each for each in describe(load_settings(file, {"PORT": "9000"}))}
    assert described["query.result_limit"].origin == f"file {file}"
    assert described["server.port"].origin == "env PORT"
    assert described["server.port"].value == "9000"
    assert described["query.candidates"].origin == "default"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DATS_SQL_URL", "postgresql+asyncpg://user:hunter2@db/dats"),
        ("DATS_SQL_URL", "postgresql+asyncpg://user:pa?hunter2@x@db/dats"),
        ("DATS_SQL_URL", "postgresql+asyncpg://db/dats?password=hunter2"),
        ("DATS_RABBITMQ_URL", "amqp://user:hunter2@mq/"),
        ("QDRANT_API_KEY", "hunter2"),
        ("QDRANT_URL", "https://user:hunter2@q:6334"),
    ],
)
def test_secrets_are_masked(name: str, value: str) -> None:
    shown = [each for each in describe(load_settings(None, {name: value})) if each.origin == f"env {name}"]
    assert len(shown) == 1
    assert "***" in shown[0].value
    assert "hunter2" not in shown[0].value


def test_a_masked_url_still_shows_where_it_leads() -> None:
    settings = load_settings(None, {"DATS_SQL_URL": "postgresql+asyncpg://user:hunter2@db:5432/dats"})
    described = {each.setting: each.value for each in describe(settings)}
    assert described["sql.url"] == "postgresql+asyncpg://user:***@db:5432/dats"
    assert "hunter2" not in repr(settings)


def test_the_reference_page_is_up_to_date() -> None:
    page = ROOT / "docs" / "configuration.md"
    assert page.read_text(encoding="utf-8") == reference(), "run `python -m dats_common.settings --write`"


def test_importing_settings_does_not_load_yaml() -> None:
    code = "import sys, dats_common.settings; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0
