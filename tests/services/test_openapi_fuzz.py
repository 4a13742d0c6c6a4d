"""What the OpenAPI document allows, and what it forbids, is sent to a replica over a socket: never a server error.

`DATS_TEST_EXAMPLES=1000` runs the long version.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from office import Office
from rig import Rig
from servers import free_port

from dats_common.adapters.sql.identity import open_key_store

EXAMPLES = int(os.environ.get("DATS_TEST_EXAMPLES", "25"))
SEED = os.environ.get("DATS_TEST_SEED", "20260101")
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
)
START_TIMEOUT_S = 20.0


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The app on a port of its own, as production serves it."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_config=None, access_log=False))
    serving = asyncio.create_task(server.serve(), name="server")
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            while not server.started:
                await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@pytest.mark.slow
@pytest.mark.timeout(max(300, EXAMPLES * 5))
async def test_nothing_that_is_sent_makes_a_server_error_or_breaks_the_document(rig: Rig, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    async with open_key_store(f"sqlite:///{tmp_path / 'ledger.db'}") as keys, rig.writer():
        office = Office(rig, keys)
        key = await office.key("admin")
        async with office.replica(embed_wait_s=1.0) as client, served(client._transport.app) as url:  # type: ignore[attr-defined]
            process = await asyncio.create_subprocess_exec(
                str(Path(sys.executable).parent / "schemathesis"),
                *("run", f"{url}/openapi.json", "--header", f"X-API-Key: {key}"),
                *("--checks", ",".join(CHECKS), "--max-examples", str(EXAMPLES), "--seed", SEED),
                *("--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--no-color"),
                *("--report", "json", "--report-json-path", str(report)),
                cwd=tmp_path,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-6000:]
    told = json.loads(report.read_text())
    print({name: told[name] for name in ("seed", "operations", "test_cases")})
    assert told["operations"]["tested"] == told["operations"]["total"] >= 8
    assert told["test_cases"]["generated"] > 4 * EXAMPLES, "of the four operations that take something"
    assert told["test_cases"]["with_failures"] == 0
