"""POST /answer over the real client and a server that speaks Ollama's protocol: what is sent, and every way to fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from facade import MODEL, WINDOW_TOKENS, small_facade
from rig import ANSWER_RULES, Rig
from scripted_ollama import HANGS, Answer, ScriptedOllama, done, open_scripted_ollama, piece, refused, said
from test_answers import ASK, answered, text
from test_http import assert_problem

from dats_common.adapters.ollama.generator import Timeouts, open_ollama
from dats_common.domain.budget import ModelLimits

TIMEOUTS = Timeouts(total_s=2.0, first_token_s=0.5, between_tokens_s=0.5, rating_s=1.0, connect_s=1.0, lookup_s=1.0)


@asynccontextmanager
async def replica_over(
    rig: Rig, url: str, *, timeouts: Timeouts = TIMEOUTS, **changes: Any
) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        open_ollama(url, timeouts=timeouts, concurrent=2, queue=2, keep_alive_s=60) as generator,
        rig.replica(generator=generator, **changes) as client,
    ):
        yield client


@pytest.fixture
async def ollama() -> AsyncIterator[ScriptedOllama]:
    async with open_scripted_ollama() as server:
        server.respond = lambda messages: "A report on invoices with totals and dates [1]."
        server.count_tokens = lambda messages: sum(len(each["content"].split()) for each in messages)
        yield server


@pytest.fixture
async def replica(rig: Rig, ollama: ScriptedOllama) -> AsyncIterator[httpx.AsyncClient]:
    rig.validated("invoices", text("invoices"))
    async with rig.writer():
        await rig.all_live("invoices")
    async with replica_over(rig, ollama.url) as client:
        yield client


async def test_an_answer_says_what_the_model_wrote_and_rated(
    replica: httpx.AsyncClient, ollama: ScriptedOllama
) -> None:
    found = await answered(replica)
    assert found.grounded
    assert (found.model_used, found.confidence.llm_score) == ("llama3.2", 80)
    draft, rating = ollama.chats
    assert draft["options"]["num_ctx"] == rating["options"]["num_ctx"] == 8192
    assert (draft["truncate"], draft["think"], draft["options"]["num_predict"]) == (False, False, 1024)
    assert [message["role"] for message in draft["messages"]] == ["system", "user"]
    assert text("invoices") in draft["messages"][1]["content"]


@pytest.mark.parametrize(
    ("script", "status", "said_of_it"),
    [
        (refused(404, "model 'llama3.2' not found"), 503, "llama3.2"),
        (refused(500, "model requires more system memory (5.6 GiB) than is available (2.0 GiB)"), 503, "memory"),
        (refused(503, "server busy, please try again. maximum pending requests exceeded"), 503, "busy"),
        (refused(400, "the input length exceeds the context length"), 503, "window"),
        (HANGS, 504, "in time"),
        (Answer([piece("A report")], ends="cut"), 503, ""),
        (Answer([piece("A report"), {"error": "an error was encountered while running the model"}]), 503, ""),
        (Answer([piece("A report")]), 503, ""),
        (Answer([piece("A report"), done(done_reason="length", prompt_tokens=400)]), 503, "1024"),
        (said("A report [1].", prompt_tokens=3), 503, "3 tokens"),
        (Answer([b"<html>gateway</html>\n"], content_type="text/html"), 503, ""),
    ],
    ids=["missing", "memory", "busy", "window", "hung", "cut", "error-line", "no-end", "length", "truncated", "HTML"],
)
async def test_every_failure_of_the_model_has_its_status_and_search_goes_on(
    replica: httpx.AsyncClient, ollama: ScriptedOllama, script: Answer, status: int, said_of_it: str
) -> None:
    ollama.answers(script)
    problem = assert_problem(await replica.post("/api/v1/answer", json=ASK), status)
    assert said_of_it in problem.detail
    assert "totals and dates" not in problem.detail, "nothing of the prompt is repeated"
    assert (await replica.post("/api/v1/query", json=ASK)).json()["sources"]
    assert (await answered(replica)).grounded, "the next answer is none the worse for it"


async def test_a_stopped_ollama_is_503_and_search_goes_on(rig: Rig, replica: httpx.AsyncClient) -> None:
    async with replica_over(rig, "http://127.0.0.1:1") as client:
        problem = assert_problem(await client.post("/api/v1/answer", json=ASK), 503)
        assert problem.title == "AI service temporarily unavailable."
        assert (await client.post("/api/v1/query", json=ASK)).json()["sources"]
        assert (await client.get("/api/v1/health")).json()["ollama"]["healthy"] is False


async def test_a_model_that_was_never_pulled_is_named_with_what_to_do(
    replica: httpx.AsyncClient, ollama: ScriptedOllama
) -> None:
    ollama.models = []
    problem = assert_problem(await replica.post("/api/v1/answer", json=ASK), 503)
    assert "ollama pull llama3.2" in problem.detail


async def test_a_rating_wrapped_in_prose_counts_and_a_useless_one_is_flagged(
    replica: httpx.AsyncClient, ollama: ScriptedOllama
) -> None:
    ollama.rating = "I would say 85/100, because it is so."
    assert (await answered(replica)).confidence.llm_score == 85
    ollama.rating = "cannot say"
    score = (await answered(replica)).confidence
    assert (score.llm_score, score.llm_rated) == (0, False)


async def test_what_a_model_thinks_is_no_part_of_its_answer(replica: httpx.AsyncClient, ollama: ScriptedOllama) -> None:
    ollama.answers(said("<think>secret", " plan</think>", "A report on invoices [1].", prompt_tokens=400))
    found = await answered(replica)
    assert "plan" not in found.answer
    assert found.grounded


async def test_generate_full_pipeline(rig: Rig, model_file: Path) -> None:
    """With a real small model behind Ollama's protocol: it proves the way, not the model's wisdom."""
    rig.validated("invoices", text("invoices"))
    async with rig.writer():
        await rig.all_live("invoices")
    rules = replace(ANSWER_RULES, models={MODEL: ModelLimits(WINDOW_TOKENS, 400)}, default_model=MODEL, temperature=0.0)
    patient = Timeouts(total_s=90.0, first_token_s=80.0, between_tokens_s=30.0, rating_s=60.0)
    async with (
        small_facade() as facade,
        replica_over(rig, facade.base_url, timeouts=patient, rules=rules, answer_deadline_s=110.0) as client,
    ):
        found = await answered(client)
    assert found.model_used == MODEL
    assert found.answer.strip()
    assert found.context_chunks_used == 1
    assert {citation.artifact_id for citation in found.citations} <= {"invoices"}
