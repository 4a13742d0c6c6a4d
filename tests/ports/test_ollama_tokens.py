"""How models count, learned from their server: exact once it is known, estimated until then and where it cannot be."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from scripted_ollama import (
    AT_THE_END,
    BYTE_VOCABULARY,
    HANGS,
    MODEL,
    PER_MESSAGE,
    SHOW,
    Answer,
    ScriptedOllama,
    bytes_and_marks,
    open_scripted_ollama,
    refused,
)
from tokenizers import Tokenizer, models, pre_tokenizers

from dats_common.adapters.ollama import OllamaGenerator, OwnTokenCounter, Timeouts, open_ollama
from dats_common.adapters.ollama.generator import KNOWN_S
from dats_common.adapters.ollama.own_tokens import AGAIN_S, MAX_SHOWN_BYTES
from dats_common.adapters.token_counters import ESTIMATE_MARGIN, build_token_counter
from dats_common.domain.prompt import Message
from dats_common.domain.tokens import EXACT_MARGIN, CountBasis, TemplateTokens
from dats_common.records import Assignment

WINDOW = 4096
PATIENT = Timeouts(
    total_s=30, first_token_s=30, between_tokens_s=30, rating_s=30, connect_s=5, lookup_s=30, load_s=30, vocabulary_s=30
)
SOON_S = 0.1
"""A timeout that a test lets pass."""
ESTIMATE = CountBasis("estimate", ESTIMATE_MARGIN)
TEXT = "the cellar, и там 🙂"
BYTES = len(TEXT.encode())
ASSIGNMENT = Assignment(
    question="where?",
    messages=(Message("user", "where?"),),
    sources=(),
    model=MODEL,
    window_tokens=WINDOW,
    max_response_tokens=64,
    temperature=0.0,
)


class Clock:
    """Seconds, in the hands of a test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def move(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedOllama]:
    async with open_scripted_ollama() as ollama:
        ollama.models = [{"name": f"{MODEL}:latest", "digest": "d" * 64}]
        ollama.model_info = BYTE_VOCABULARY
        ollama.count_tokens = bytes_and_marks
        yield ollama


@pytest.fixture
async def generator(server: ScriptedOllama, clock: Clock) -> AsyncIterator[OllamaGenerator]:
    async with opened(server, clock=clock) as ollama:
        yield ollama


def opened(server: ScriptedOllama, **changes: Any) -> AbstractAsyncContextManager[OllamaGenerator]:
    arguments = {"timeouts": PATIENT, "concurrent": 1, "queue": 8, "keep_alive_s": 77, **changes}
    return open_ollama(server.url, **arguments)


def counter_over(generator: OllamaGenerator, files: dict[str, Path] | None = None) -> OwnTokenCounter:
    estimate = build_token_counter(files or {}, estimate=lambda text: len(text.split()))
    return OwnTokenCounter(generator.tokens, windows={MODEL: WINDOW}, otherwise=estimate)


async def learn(generator: OllamaGenerator) -> None:
    await generator.tokens.learn(MODEL, window_tokens=WINDOW)


def shows(server: ScriptedOllama) -> list[Any]:
    """What was asked of `/api/show`."""
    return [request.body for request in server.requests if request.path == SHOW]


# ------------------------------------------------------------------------------------------------------ what is known


async def test_a_count_is_estimated_until_the_models_own_tokenizer_is_there_and_exact_then(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    counter = counter_over(generator)
    assert counter.basis(MODEL) == ESTIMATE
    assert counter.count(TEXT, model=MODEL) != BYTES
    await learn(generator)
    assert counter.count(TEXT, model=MODEL) == BYTES
    basis = counter.basis(MODEL)
    assert basis.stated == f"tokenizer of {MODEL}:latest (gpt-2, dddddddddddd), by its server, within 2%"
    assert basis.template == TemplateTokens(prompt=2 * PER_MESSAGE + AT_THE_END, turn=2 * PER_MESSAGE)
    assert shows(server) == [{"model": MODEL, "verbose": True}]


async def test_what_the_template_adds_is_measured_with_the_window_of_every_chat(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    await learn(generator)
    assert {chat["options"]["num_ctx"] for chat in server.chats} == {WINDOW}
    assert {chat["options"]["num_predict"] for chat in server.chats} == {1}


async def test_many_who_ask_have_it_learned_once(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    counter = counter_over(generator)
    for _ in range(20):
        counter.basis(MODEL)
        counter.count(TEXT, model=MODEL)
    await asyncio.gather(*(learn(generator) for _ in range(5)))
    await learn(generator)
    assert len(shows(server)) == 1


async def test_another_version_of_the_model_is_estimated_at_once_and_learned_anew(
    server: ScriptedOllama, generator: OllamaGenerator, clock: Clock
) -> None:
    counter = counter_over(generator)
    await learn(generator)
    server.models = [{"name": f"{MODEL}:latest", "digest": "e" * 64}]
    clock.move(KNOWN_S)
    await generator.require(MODEL)
    assert counter.basis(MODEL) == ESTIMATE
    await learn(generator)
    assert "eeeeeeeeeeee" in counter.basis(MODEL).source
    assert len(shows(server)) == 2


async def test_a_file_that_an_operator_named_wins_and_is_told_what_the_template_adds(
    generator: OllamaGenerator, tmp_path: Path
) -> None:
    file = tmp_path / "words.json"
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.save(str(file))
    counter = counter_over(generator, {MODEL: file})
    await learn(generator)
    assert counter.count(TEXT, model=MODEL) == 5
    assert counter.basis(MODEL) == CountBasis("words.json", EXACT_MARGIN, TemplateTokens(13, 10))


# --------------------------------------------------------------------------------------------------- what is in its way


async def test_answers_do_not_wait_for_it(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    arrived = asyncio.Event()
    server.answers(Answer([arrived, {"model_info": BYTE_VOCABULARY}]), path=SHOW)
    counter = counter_over(generator)
    assert counter.basis(MODEL) == ESTIMATE
    await server.until(lambda: bool(shows(server)))
    assert [part async for part in generator.generate(ASSIGNMENT)]
    assert counter.basis(MODEL) == ESTIMATE
    arrived.set()
    await learn(generator)
    assert counter.basis(MODEL).is_exact


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({name: None for name in BYTE_VOCABULARY if name.endswith(("tokens", "merges", "type"))}, "does not show"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken' is not known"),
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.pre": "x" * 1000}, "is not known"),
        ({"tokenizer.ggml.merges": ["q zz"]}, "broken"),
    ],
    ids=["not verbose", "unknown rule", "another kind", "a long name", "broken"],
)
async def test_what_cannot_be_built_stays_an_estimate_that_says_why_and_is_logged_once(
    server: ScriptedOllama,
    generator: OllamaGenerator,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
    changes: dict[str, Any],
    reason: str,
) -> None:
    server.model_info = {**BYTE_VOCABULARY, **changes}
    counter = counter_over(generator)
    before = counter.count(TEXT, model=MODEL)
    for _ in range(3):
        await learn(generator)
        clock.move(AGAIN_S)
        basis = counter.basis(MODEL)
        assert basis.source.startswith("estimate: ")
        assert reason in basis.source
        assert basis.margin == ESTIMATE_MARGIN
        assert len(basis.stated) <= 256, "what the evidence has room for"
        assert counter.count(TEXT, model=MODEL) == before
    assert len(shows(server)) == 1
    (logged,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert reason in logged


@pytest.mark.parametrize(
    "count",
    [
        lambda messages: sum(len(each["content"].split()) + PER_MESSAGE for each in messages),
        lambda messages: bytes_and_marks(messages[-1:]),
        lambda messages: 4,
        lambda messages: 1_000,
    ],
    ids=["in other tokens", "without what it remembers", "hardly any", "always the same"],
)
async def test_a_vocabulary_that_the_servers_own_counts_disagree_with_is_not_used(
    server: ScriptedOllama, generator: OllamaGenerator, count: Any
) -> None:
    server.count_tokens = count
    await learn(generator)
    basis = counter_over(generator).basis(MODEL)
    assert basis.margin == ESTIMATE_MARGIN
    assert "counts" in basis.source


async def test_a_server_that_counts_nothing_leaves_an_estimate(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    server.answers(*[Answer([{"message": {"content": "a"}, "done": True, "done_reason": "length"}])] * 3)
    await learn(generator)
    assert "how long a prompt is" in counter_over(generator).basis(MODEL).source


async def test_more_than_a_vocabulary_can_be_is_not_read_to_its_end_nor_asked_for_again(
    server: ScriptedOllama, generator: OllamaGenerator, clock: Clock
) -> None:
    mebibyte = b" " * 2**20
    server.answers(Answer([mebibyte] * (2 * MAX_SHOWN_BYTES // 2**20), content_type="application/json"), path=SHOW)
    await learn(generator)
    clock.move(AGAIN_S)
    await learn(generator)
    assert "too many bytes" in counter_over(generator).basis(MODEL).source
    assert len(shows(server)) == 1
    await server.until(lambda: server.abandoned == 1)


@pytest.mark.parametrize("trouble", [HANGS, refused(503, "server busy"), Answer([{"model_info": {}}], ends="cut")])
async def test_a_server_that_is_slow_or_busy_is_asked_again_later(
    server: ScriptedOllama, clock: Clock, trouble: Answer
) -> None:
    server.answers(trouble, path=SHOW)
    timeouts = Timeouts(connect_s=5, lookup_s=30, vocabulary_s=SOON_S if trouble is HANGS else 30)
    async with opened(server, clock=clock, timeouts=timeouts) as generator:
        counter = counter_over(generator)
        await learn(generator)
        for _ in range(3):
            assert counter.basis(MODEL) == ESTIMATE
        assert len(shows(server)) == 1, "not at once"
        clock.move(AGAIN_S)
        assert counter.basis(MODEL) == ESTIMATE
        await server.until(lambda: len(shows(server)) == 2)


async def test_a_model_that_is_not_there_is_estimated(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    server.models = []
    await learn(generator)
    assert counter_over(generator).basis(MODEL) == ESTIMATE
    assert shows(server) == []


async def test_closing_gives_up_what_is_being_learned(server: ScriptedOllama) -> None:
    server.answers(HANGS, path=SHOW)
    async with opened(server) as generator:
        counter_over(generator).basis(MODEL)
        await server.until(lambda: bool(shows(server)))
    await server.until(lambda: server.abandoned == 1)
