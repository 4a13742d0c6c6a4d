"""Keys and logs of real processes. First: a key from the command line, on two replicas, until it is revoked. Then:
words that nobody may log, sent through every path of real processes at level debug: no sink holds one of them.

Sinks: what every process writes, every file under its directories, the servers' own logs, metrics, every refusal, the
reasons of dead letters and of failed events. The ledger and the queues hold content, and must not hold credentials.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import asyncpg
import httpx
import jwt
import pytest
from fleet import CONFIGURATION, Fleet, create_database, eventually, producer, published, purge
from servers import PostgresServer, RabbitServer

from dats_common.contracts.topology import DEAD_LETTERS_QUEUE

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(600)]


def canary(what: str) -> str:
    return f"canary{what}{secrets.token_hex(8)}"


CONTENT, QUERY, REASON, TITLE = canary("content"), canary("query"), canary("reason"), canary("title")
TOKEN, KEY, JWT_SECRET = canary("token"), canary("key"), canary("jwtsecret") + "x" * 32
WORDS = [CONTENT, QUERY, REASON, TITLE, TOKEN, KEY, JWT_SECRET]
SETTINGS = f"""{CONFIGURATION}
auth:
  mode: required
  requests_per_minute: 100000
  jwt: {{algorithm: HS256, issuer: idp, audience: dats-rag}}
server:
  body_limit_bytes: 100000
query:
  embed_wait_s: 5
"""


@pytest.fixture(scope="module")
def fleet(
    rabbitmq: RabbitServer, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    async def prepare() -> str:
        await purge(rabbitmq.url)
        return await create_database(postgres.url)

    made = Fleet(tmp_path_factory.mktemp("canary"), sql_url=asyncio.run(prepare()), amqp_url=rabbitmq.url)
    (made.base / "rag-service.yaml").write_text(SETTINGS)
    made.environment |= {"DATS_LOG_LEVEL": "debug", "DATS_JWT_SECRET": JWT_SECRET}
    try:
        made.start(writers=1, replicas=2)
        yield made
    finally:
        made.end()


def signed(**claims: Any) -> str:
    now = int(time.time())
    good = {"iss": "idp", "aud": "dats-rag", "sub": "ann", "iat": now, "exp": now + 600, "tenant_id": "default"}
    return jwt.encode({**good, "roles": ["admin"], "tags": ["*"], **claims}, JWT_SECRET, "HS256")


def dats_rag(fleet: Fleet, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "dats-rag"), *arguments],
        env={**fleet.environment, **settings},
        cwd=fleet.base,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def make_key(fleet: Fleet) -> tuple[str, str]:
    """A key by the command line, and what the command said besides."""
    done = dats_rag(fleet, "keys", "create", "--name", "c", "--role", "admin", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["key"], done.stderr


async def test_a_key_of_the_command_line_is_good_on_every_replica_until_it_is_revoked(fleet: Fleet) -> None:
    key, _ = make_key(fleet)

    def statuses() -> list[int]:
        headers = {"X-API-Key": key}
        asked = [
            httpx.post(f"{replica.url}/api/v1/query", json={"query": "q"}, headers=headers, timeout=30, trust_env=False)
            for replica in fleet.replicas
        ]
        return [response.status_code for response in asked]

    def taint() -> subprocess.CompletedProcess[str]:
        return dats_rag(fleet, "taint", "nobody", "--url", f"{fleet.replicas[0].url}/api/v1", DATS_API_KEY=key)

    checks = {each["name"]: each for each in json.loads(dats_rag(fleet, "doctor", "--json").stdout)["checks"]}
    assert (checks["callers"]["ok"], checks["callers"]["detail"]) == (True, "1 good keys, tokens of idp")
    assert statuses() == [200, 200]
    assert taint().returncode == 0
    key_id = key.split("_")[1]
    assert dats_rag(fleet, "keys", "revoke", key_id).returncode == 0
    assert statuses() == [401, 401]
    refused = taint()
    assert (refused.returncode, "revoked" in refused.stderr) == (1, True)
    listed = {each["key_id"]: each for each in json.loads(dats_rag(fleet, "keys", "list", "--json").stdout)}
    assert listed[key_id]["state"] == "revoked"
    assert listed[key_id]["last_used_at"] is not None
    assert key.split("_", 2)[2] not in json.dumps(listed)


def text(about: str) -> str:
    return f"a report on {about} that says {CONTENT} twice: {CONTENT}"


async def over_http(client: httpx.AsyncClient, good: dict[str, str]) -> list[httpx.Response]:
    """Every route with good credentials, then whatever can be refused. Returns the refusals."""

    async def post(path: str, body: Any, headers: dict[str, str] = good) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.post(
            f"/api/v1{path}", content=content, headers={"content-type": "application/json", **headers}
        )

    ask = {"query": f"the report that says {QUERY}"}
    metadata = {"artifact_id": "http", "project_id": "p", "title": TITLE}
    embed = {"content": text("http"), "metadata": metadata}
    batch = {"artifact_ids": ["http"], "reason": REASON, "cascade_id": "c"}
    for path, body in (("/embed", embed), ("/query", ask), ("/embeddings/batch-invalidate", batch)):
        assert (await post(path, body)).is_success, path
    assert (await client.delete("/api/v1/embeddings/http", headers=good)).is_success
    # A problem names the path and the unknown field to who sent it: these answers are no sink, the logs are.
    await post("/query", {**ask, "filters": {QUERY: 1}, QUERY: 1})
    await client.delete(f"/api/v1/embeddings/{CONTENT}%00", headers=good)
    await client.get(f"/api/v1/nope/{QUERY}?q={QUERY}", headers=good)
    return [
        await post("/query", f'{{"query": "{QUERY}'.encode()),
        await post("/query", {**ask, "search_mode": QUERY}),
        await post("/query", {"query": [QUERY]}),
        await post("/query", {**ask, "tenant_id": "other"}),
        await post("/query", {**ask, "query": QUERY * 500}),
        await post("/embed", {**embed, "content": CONTENT + "\0"}),
        await post("/embed", {"content": CONTENT, "metadata": {**metadata, "tags": CONTENT}}),
        await post("/embed", {"content": CONTENT * 10_000, "metadata": metadata}),
        await post("/embed", {**embed, "metadata": {**metadata, "scope": CONTENT}}),
        await post("/embeddings/batch-invalidate", {**batch, "artifact_ids": [CONTENT * 40]}),
        await client.patch("/api/v1/query", content=CONTENT.encode(), headers=good),
        *[
            await post("/query", ask, headers)
            for headers in (
                {},
                {"X-API-Key": KEY},
                {"X-API-Key": good["X-API-Key"][:-8] + "AAAAAAAA"},
                {"Authorization": f"Basic {base64.b64encode(f'u:{KEY}'.encode()).decode()}", "X-API-Key": KEY},
                {"Authorization": f"Bearer {TOKEN}"},
                {"Authorization": f"Bearer {TOKEN}.{TOKEN}.{TOKEN}"},
                {"Authorization": f"Bearer {signed(exp=1)}"},
                {"Authorization": f"Bearer {signed(aud=TOKEN)}"},
                {"Authorization": f"Bearer {signed(tenant_id=[TOKEN])}"},
                {**good, "Authorization": f"Bearer {signed()}"},
            )
        ],
    ]


async def over_amqp(fleet: Fleet) -> None:
    """Approvals and taints that work, and messages that end as dead letters."""
    metadata = {"project_id": "p", "title": TITLE}
    good = {"artifact_id": "amqp", "content": text("amqp"), "metadata": metadata}
    bad: list[bytes | dict[str, Any]] = [
        f"no JSON {CONTENT}".encode(),
        f'{{"data": {{"artifact_id": "a", "content": "{CONTENT}", "content": "{CONTENT}"}}}}'.encode(),
        {"data": {**good, "artifact_id": {"x": CONTENT}}},
        {"data": {**good, "artifact_id": CONTENT * 40}},
        {"data": {**good, "metadata": {"project_id": [CONTENT], "scope": CONTENT}}},
        {"data": {**good, "metadata": {**metadata, CONTENT: "x" * 20_000}}},
        {"data": good, "time": CONTENT},
        {"data": good, "type": CONTENT},
        {"data": CONTENT},
        b"[" * 100_000 + CONTENT.encode(),
        json.dumps({"data": {**good, "content": CONTENT * 400_000}}).encode(),
    ]
    async with producer(fleet.amqp_url) as team:
        await team.publish("task.validated", {"data": good})
        await team.completed("amqp")
        for body in bad:
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            await team.exchange.publish(aio_pika.Message(raw), "task.validated")
        taints = [{"artifact_ids": [CONTENT * 40, 7, "amqp"], "reason": REASON}, {"artifact_ids": {CONTENT: [CONTENT]}}]
        for taint in taints:
            await team.publish("artifact.tainted", {"data": taint})
        await team.invalidated("amqp")
        again = {**good, "content": text("amqp, again")}
        await team.publish("task.validated", {"data": again})  # bare after a taint: quarantined
        await _dead_letters(fleet, len(bad) + len(taints))


async def _dead_letters(fleet: Fleet, count: int) -> list[dict[str, Any]]:
    """Headers of the dead letters, once there are so many; they stay where they are."""
    async with await aio_pika.connect(fleet.amqp_url, timeout=10) as connection, connection.channel() as channel:

        async def there() -> bool:
            queue = await channel.declare_queue(DEAD_LETTERS_QUEUE, passive=True)
            return (queue.declaration_result.message_count or 0) >= count

        await eventually(there, what=f"{count} dead letters")
        queue = await channel.get_queue(DEAD_LETTERS_QUEUE, ensure=False)
        messages = [await queue.get(no_ack=False) for _ in range(count)]
        return [dict(message.headers) for message in messages]  # closing the channel puts them back


async def in_outages(fleet: Fleet, client: httpx.AsyncClient, good: dict[str, str]) -> None:
    """The index dies with content in hand; the ledger's connections are cut while everything is under way."""
    assert fleet.engine is not None
    embed = {"content": text("outage"), "metadata": {"artifact_id": "outage", "project_id": "p", "title": TITLE}}
    fleet.engine.kill9()
    asked = await client.post("/api/v1/query", json={"query": QUERY}, headers=good)
    assert asked.status_code == 503
    assert (await client.post("/api/v1/embed", json=embed, headers=good)).status_code == 202
    async with fleet.ledger() as ledger:
        for _ in range(5):
            await ledger.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
            await client.post("/api/v1/query", json={"query": QUERY}, headers=good)
            await asyncio.sleep(0.2)
    await asyncio.to_thread(fleet.start_engine)
    await fleet.all_live(["outage"])


def found_in(data: bytes, words: list[str]) -> list[str]:
    """Plain, escaped, or as the base64 that a header or a token carries."""
    forms = {word: (word.encode(), base64.b64encode(word.encode())[:-4]) for word in words}
    return [word for word, shapes in forms.items() if any(shape in data for shape in shapes)]


async def test_no_sink_holds_what_nobody_may_log(
    fleet: Fleet, postgres: PostgresServer, rabbitmq: RabbitServer
) -> None:
    key, said = make_key(fleet)
    secret = key.split("_", 2)[2]  # it may hold a _ of its own
    words = [*WORDS, secret]
    good = {"X-API-Key": key}
    async with fleet.replicas[0].client() as client:
        refused = await over_http(client, good)
        await over_amqp(fleet)
        await in_outages(fleet, client, good)
        metrics = (await client.get("/metrics")).content
        health = (await client.get("/api/v1/health", headers=good)).content
    assert {response.status_code for response in refused} >= {401, 403, 405, 413, 422}
    sinks = {f"refusal {number}": answer.content for number, answer in enumerate(refused)}
    sinks |= {f"headers {number}": repr(answer.headers.raw).encode() for number, answer in enumerate(refused)}
    sinks |= {"metrics": metrics, "health": health, "stderr of dats-rag keys": said.encode()}
    sinks["dead letters' headers"] = repr(await _dead_letters(fleet, 1)).encode()
    async for data in published(fleet.amqp_url, event="embedding.failed", timeout_s=2.0):
        sinks[f"embedding.failed {len(sinks)}"] = json.dumps(data).encode()
    fleet.stop()  # what was buffered is written
    files = [path for path in fleet.base.rglob("*") if path.is_file() and path.name != "rag-service.yaml"]
    for server in (postgres, rabbitmq):
        base = getattr(server, "_base", None)
        files += [] if base is None else [path for path in Path(base).rglob("*log*") if path.is_file()]
    sinks |= {str(path): path.read_bytes() for path in files}
    assert b'"event": "artifacts_tainted"' in sinks[str(fleet.replicas[0].log)], "this is where it would be"
    assert {name: found for name, data in sinks.items() if (found := found_in(data, words))} == {}

    credentials = [TOKEN, KEY, JWT_SECRET, secret, QUERY]
    connection = await asyncpg.connect(fleet.postgres_url, timeout=10)
    try:
        tables = [row[0] for row in await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname='public'")]
        rows = {name: repr(await connection.fetch(f'SELECT t::text FROM "{name}" t')).encode() for name in tables}
    finally:
        await connection.close()
    assert CONTENT.encode() in rows["rag_documents"], "content is where it belongs"
    assert REASON.encode() in rows["rag_audit"]
    assert {name: found for name, data in rows.items() if (found := found_in(data, credentials))} == {}
