"""A process that cannot work says why, in one line, and ends with status 78: starting it again would not help."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fleet import bare_environment
from servers import RabbitServer, wait_until

from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.qdrant import open_qdrant
from dats_common.embedded.qdrant_edge import EngineProcess, open_engine_process
from dats_common.fingerprint import fingerprint

pytestmark = [pytest.mark.slow]

REFUSED = 78
PORT = "18431"
"""Never served: these processes end before."""
SERVICES = ["services.writer", "services.query"]


def start(module: str, *arguments: str, timeout_s: float = 60.0, **settings: str) -> tuple[int, str]:
    """Run it until it ends by itself: its status and what it told."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=bare_environment(**settings),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def assert_refused(ended: tuple[int, str], *parts: str) -> None:
    status, told = ended
    assert status == REFUSED, told
    assert "Traceback" not in told
    for part in parts:
        assert part in told


@pytest.mark.parametrize("module", SERVICES)
def test_an_unknown_setting_is_refused_with_the_nearest_name(module: str, tmp_path: Path) -> None:
    file = tmp_path / "rag-service.yaml"
    file.write_text("query:\n  reslt_limit: 5\n")
    assert_refused(start(module, DATS_CONFIG=str(file)), "query.reslt_limit", "did you mean query.result_limit?")
    assert_refused(start(module, DATS_SQL_ULR="x"), "DATS_SQL_ULR", "did you mean DATS_SQL_URL?")
    assert_refused(start(module, QDRANT_GRPC_PORT="70000"), "QDRANT_GRPC_PORT")


def test_a_port_in_use_is_refused_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = start("services.query", DATS_DATA_DIR=str(tmp_path / "data"), PORT=port)
        assert_refused(ended, f"127.0.0.1:{port}", "PORT")


def test_values_that_would_be_shared_through_files_are_refused(tmp_path: Path) -> None:
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    ended = start("services.query", DATS_DATA_DIR=str(tmp_path / "data"), PORT=PORT, **shared)
    assert_refused(ended, "PROMETHEUS_MULTIPROC_DIR is set", "scrape each process at its own port")


def test_an_open_service_that_others_could_reach_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "rag-service.yaml"
    file.write_text("server:\n  host: 0.0.0.0\n")
    ended = start("services.query", DATS_CONFIG=str(file), DATS_DATA_DIR=str(tmp_path / "data"), PORT=PORT)
    assert_refused(ended, "0.0.0.0", "DATS_AUTH_MODE=required", "dats-rag keys create")


@pytest.mark.parametrize("module", SERVICES)
def test_no_index_is_refused_with_what_to_do(module: str, tmp_path: Path) -> None:
    assert_refused(start(module, DATS_DATA_DIR=str(tmp_path / "data"), PORT=PORT), "QDRANT_HOST", "dats-rag up")


@pytest.mark.parametrize("module", SERVICES)
def test_a_data_directory_that_is_a_file_is_refused(module: str, tmp_path: Path) -> None:
    in_its_place = tmp_path / "data"
    in_its_place.write_text("not a directory")
    assert_refused(start(module, DATS_DATA_DIR=str(in_its_place), PORT=PORT), str(in_its_place))


def test_the_fleet_refuses_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    in_its_place = tmp_path / "data"
    in_its_place.write_text("not a directory")
    ended = start("services.cli", "up", "--data", str(in_its_place), "--port", PORT)
    assert_refused(ended, str(in_its_place), "--data")


def test_a_second_engine_on_one_directory_is_refused(tmp_path: Path) -> None:
    async def both() -> tuple[int, str]:
        async with open_engine_process(tmp_path):
            return start("dats_common.embedded.qdrant_edge", str(tmp_path))

    assert_refused(asyncio.run(both()), str(tmp_path))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineProcess]:
    """An engine whose collection another model has written."""
    async with open_engine_process(tmp_path / "qdrant") as process:
        async with open_qdrant(collection="dats_embeddings", host=process.host, grpc_port=process.port) as index:
            await index.prepare(await fingerprint(MemoryEncoder(dimension=384)))
        yield process


@pytest.mark.parametrize("module", SERVICES)
async def test_an_index_of_another_model_is_refused(module: str, engine: EngineProcess, tmp_path: Path) -> None:
    ended = start(
        module,
        DATS_DATA_DIR=str(tmp_path / "data"),
        QDRANT_HOST=engine.host,
        QDRANT_GRPC_PORT=str(engine.port),
        PORT=PORT,
    )
    assert_refused(ended, "hashed-words", "dats-rag reindex")


def test_a_model_that_is_not_there_is_refused(engine: EngineProcess, tmp_path: Path) -> None:
    ended = start(
        "services.writer",
        DATS_DATA_DIR=str(tmp_path / "data"),
        QDRANT_HOST=engine.host,
        QDRANT_GRPC_PORT=str(engine.port),
        EMBEDDING_MODEL=str(tmp_path / "no-such-model"),
    )
    assert_refused(ended, "no-such-model")


def test_credentials_that_the_broker_refuses_stop_the_start_and_are_not_shown(
    rabbitmq: RabbitServer, tmp_path: Path
) -> None:
    url = rabbitmq.url.replace("guest:guest", "guest:wrongsecret")

    async def told() -> tuple[int, str]:
        async with open_engine_process(tmp_path / "qdrant") as process:
            return start(
                "services.writer",
                DATS_DATA_DIR=str(tmp_path / "data"),
                DATS_RABBITMQ_URL=url,
                QDRANT_HOST=process.host,
                QDRANT_GRPC_PORT=str(process.port),
            )

    ended = asyncio.run(told())
    assert_refused(ended, "DATS_RABBITMQ_URL")
    assert "wrongsecret" not in ended[1]


def test_a_writer_that_waits_for_the_broker_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    log = tmp_path / "writer.log"
    settings = {
        "DATS_DATA_DIR": str(tmp_path / "data"),
        "DATS_RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:1/",
        "QDRANT_HOST": "127.0.0.1",
    }
    with log.open("wb") as output:
        writer = subprocess.Popen(
            [sys.executable, "-m", "services.writer"], env=bare_environment(**settings), stdout=output, stderr=output
        )
    try:
        wait_until(lambda: "broker_waited" in log.read_text(), timeout_s=60.0, what="waiting for the broker")
        writer.terminate()
        assert writer.wait(15.0) == 0, log.read_text()
    finally:
        writer.kill()
        writer.wait()
    assert "Traceback" not in log.read_text()


def test_doctor_names_the_missing_writer_and_how_to_start_one(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services.cli", "doctor", "--json", "--data", str(tmp_path / "data")],
        env=bare_environment(),
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert ended.returncode == 1
    checks = {each["name"]: each for each in json.loads(ended.stdout)["checks"]}
    assert not checks["writer"]["ok"]
    assert "dats-rag up" in checks["writer"]["detail"]


def test_doctor_refuses_a_default_model_that_the_service_would_not_start_with(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "services.cli", "doctor", "--json", "--data", str(tmp_path / "data")],
        env=bare_environment(CHAT_MODEL="nobody-listed-this"),
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert ended.returncode == 1
    answers = next(each for each in json.loads(ended.stdout)["checks"] if each["name"] == "answers")
    assert not answers["ok"]
    assert "answers.chat_model 'nobody-listed-this' is not in answers.models: add it there" in answers["detail"]
