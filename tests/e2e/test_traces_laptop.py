"""The same traces on one machine: the fleet of `dats-rag up`, the queue in a file, the ledger in another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import names, text
from opentelemetry.sdk.trace import TracerProvider
from otlp_receiver import Receiver, open_receiver, tree
from servers import free_port

from dats_common.adapters.sqlite_bus import open_sqlite_bus
from dats_common.clients.rag import RAGClient
from dats_common.contracts.topology import EMBEDDING_COMPLETED
from dats_common.settings import load_settings
from services.backends import bus_file
from services.local import open_fleet

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ENCODED = "embeddings all-MiniLM-L6-v2"
FOUND = {ENCODED, "search dats_embeddings", "read ledger", "still_live ledger"}


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with open_receiver() as receiver:
        yield receiver


async def test_a_workers_span_is_above_what_the_fleet_does_for_it(collector: Receiver, tmp_path: Path) -> None:
    environ = {
        "DATS_DATA_DIR": str(tmp_path / "data"),
        "PORT": str(free_port()),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    settings = load_settings(None, environ)
    tracer = TracerProvider().get_tracer("worker")
    (artifact,) = names(1)
    async with open_fleet(settings, environ=environ) as fleet, RAGClient(base_url=fleet.base_url) as client:
        async with open_sqlite_bus(bus_file(settings)) as bus, bus.watch(EMBEDDING_COMPLETED) as completed:
            with tracer.start_as_current_span("task") as task:
                embedded = await client.embed(text(artifact), {"artifact_id": artifact, "project_id": "p"})
                result = await client.query("ledger report invoices")
            header = (await anext(completed)).headers["traceparent"]
        assert embedded.status == "indexed"
        assert [source.artifact_id for source in result.sources] == [artifact]
        above = task.get_span_context()
        trace_id, span_id = f"{above.trace_id:032x}", f"{above.span_id:016x}"
        assert header.split("-")[1] == trace_id
        spans = await collector.trace_with(trace_id, "POST /api/v1/query", "process rag-service-events")
    below = tree(spans, below=span_id)
    assert below.keys() == {"POST /api/v1/embed", "POST /api/v1/query"}
    assert below["POST /api/v1/query"]["rag.query"].keys() == FOUND
    sent = below["POST /api/v1/embed"]["send rag.commands"]
    # The first command finds no active writer, and is handed over to where the writer becomes active.
    assert sent.pop("process rag-service-commands") == {}
    processed = sent["process rag-service-events"]
    assert processed.keys() == {"admit ledger", "rag.index", "flip ledger", "send task.events"}
    assert processed["rag.index"].keys() == {ENCODED, "write_chunks ledger", "store dats_embeddings"}
    systems = {span.attributes.get("messaging.system", span.attributes.get("db.system.name")) for span in spans}
    assert systems == {None, "dats_sqlite", "sqlite", "qdrant"}
    assert {span.resource["service.name"] for span in spans} == {"rag-service"}
