"""The generator on Ollama: what it sends, what it makes of answers, and what of every way in which they fail."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

import pytest
from scripted_ollama import (
    HANGS,
    LOAD,
    MODEL,
    TAGS,
    VERSION,
    Answer,
    ScriptedOllama,
    done,
    open_scripted_ollama,
    piece,
    refused,
    said,
)

from dats_common.adapters.ollama import OllamaGenerator, Timeouts, open_ollama
from dats_common.adapters.ollama.client import MAX_ANSWER_BYTES, MAX_LINE_BYTES, MAX_REFUSAL_BYTES
from dats_common.adapters.ollama.generator import KNOWN_S
from dats_common.adapters.ollama.names import full_name
from dats_common.adapters.ollama.rating import read_score
from dats_common.adapters.ollama.slots import BUSY_RETRY_AFTER_S
from dats_common.adapters.ollama.thinking import WithoutThoughts
from dats_common.domain.prompt import Message, PromptSource
from dats_common.errors import (
    ConfigurationError,
    ContextTruncatedError,
    LLMConnectionError,
    LLMTimeoutError,
    ModelUnavailableError,
    RAGServiceError,
    ResponseCutError,
)
from dats_common.records import Assignment, Drafted

CANARY = "hunter2canary"
WINDOW = 4096
PATIENT = Timeouts(total_s=30, first_token_s=30, between_tokens_s=30, rating_s=30, connect_s=5, lookup_s=30, load_s=30)
SOON_S = 0.1
"""A timeout that a test lets pass."""

ASSIGNMENT = Assignment(
    question=f"where is {CANARY}?",
    messages=(Message("system", "Only from the sources."), Message("user", f"where is {CANARY}?")),
    sources=(PromptSource(1, "d:0", "notes.md", f"the {CANARY} is in the cellar", 0.9),),
    model=MODEL,
    window_tokens=WINDOW,
    max_response_tokens=64,
    temperature=0.25,
)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedOllama]:
    async with open_scripted_ollama() as ollama:
        yield ollama


@pytest.fixture
async def generator(server: ScriptedOllama) -> AsyncIterator[OllamaGenerator]:
    """One chat at a time, and none that waits: a slot that was not given back shows at once."""
    async with opened(server) as ollama:
        yield ollama


def opened(server: ScriptedOllama, **changes: Any) -> AbstractAsyncContextManager[OllamaGenerator]:
    arguments = {"timeouts": PATIENT, "concurrent": 1, "queue": 0, "keep_alive_s": 77, **changes}
    return open_ollama(server.url, **arguments)


async def draft(generator: OllamaGenerator, **changes: Any) -> tuple[str, Drafted]:
    """The whole text, and what ended it."""
    parts = [part async for part in generator.generate(replace(ASSIGNMENT, **changes))]
    assert all(isinstance(part, str) for part in parts[:-1])
    assert isinstance(parts[-1], Drafted)
    return "".join(str(part) for part in parts[:-1]), parts[-1]


# --------------------------------------------------------------------------------------------------- what is asked


async def test_an_answer_comes_piece_by_piece_and_ends_with_what_the_server_counted(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    server.answers(said("In the ", "cellar", " [1].", prompt_tokens=31, response_tokens=7))
    parts = [part async for part in generator.generate(ASSIGNMENT)]
    assert parts == ["In the ", "cellar", " [1].", Drafted(MODEL, 31, 7)]


async def test_a_piece_is_handed_on_before_the_next_one_exists(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    rest = asyncio.Event()
    server.answers(Answer([piece("first"), rest, piece("second"), done()]))
    async with aclosing(generator.generate(ASSIGNMENT)) as parts:
        assert await anext(parts) == "first"
        rest.set()
        assert [part async for part in parts] == ["second", Drafted(MODEL, 10, 5)]


async def test_a_chat_names_its_window_is_never_cut_and_does_not_think(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    await draft(generator)
    assert server.chats == [
        {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "Only from the sources."},
                {"role": "user", "content": f"where is {CANARY}?"},
            ],
            "stream": True,
            "think": False,
            "truncate": False,
            "shift": False,
            "keep_alive": 77,
            "options": {"num_ctx": WINDOW, "num_predict": 64, "temperature": 0.25},
        }
    ]


@pytest.mark.parametrize("refusal", [f'"{MODEL}" does not support thinking', 'json: unknown field "think"'])
async def test_a_server_that_refuses_think_is_asked_without_it_from_then_on(
    server: ScriptedOllama, generator: OllamaGenerator, refusal: str
) -> None:
    server.answers(refused(400, refusal))
    assert (await draft(generator))[0]
    assert (await draft(generator))[0]
    assert ["think" in chat for chat in server.chats] == [True, False, False]
    assert server.chats[1] == server.chats[2]


async def test_a_server_that_refuses_think_twice_is_not_asked_a_third_time(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    server.answers(*[refused(400, "cannot think")] * 3)
    with pytest.raises(LLMConnectionError):
        await draft(generator)
    assert len(server.chats) == 2


async def test_text_that_is_no_text_is_sent_all_the_same(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    server.answers(said("yes"))
    await draft(generator, messages=(Message("user", "half a pair: \ud83d"),))
    assert server.chats[0]["messages"][0]["content"] == "half a pair: \ud83d"


async def test_neither_a_redirect_nor_a_proxy_of_the_environment_sees_a_prompt(
    server: ScriptedOllama, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_scripted_ollama() as elsewhere:
        monkeypatch.setenv("HTTP_PROXY", elsewhere.url)
        monkeypatch.setenv("ALL_PROXY", elsewhere.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with opened(server) as generator:
            server.answers(Answer(status=307, headers={"Location": f"{elsewhere.url}/api/chat"}))
            with pytest.raises(LLMConnectionError, match="307"):
                await draft(generator)
            await draft(generator)
        assert len(server.chats) == 2
        assert elsewhere.connections == 0


@pytest.mark.parametrize(
    "url", ["localhost:11434", "", "http://", "ftp://host", "http://host:port", "http://ollama..example"]
)
async def test_what_is_no_address_of_a_server_stops_the_start(url: str) -> None:
    with pytest.raises(ConfigurationError, match="OLLAMA_BASE_URL"):
        async with open_ollama(url, timeouts=PATIENT, concurrent=1, queue=0, keep_alive_s=0):
            pass


# -------------------------------------------------------------------------------------------------------- thinking


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["<think>hm</think>yes"], "yes"),
        (["<thi", "nk>h", "m</th", "ink>\n\nyes", " it is"], "yes it is"),
        (list("  <think>a < b</think>\n<think>b</think>yes"), "yes"),
        (["<think>hm, and never an end", " of it"], ""),
        (["<think>hm</thin", "g>"], ""),
        (["<th"], "<th"),
        (["<thin", "g> is a tag"], "<thing> is a tag"),
        (["\n  yes"], "\n  yes"),
        (["  "], "  "),
        (["the `<think>", "` tag opens it"], "the `<think>` tag opens it"),
        ([], ""),
    ],
)
def test_thoughts_before_an_answer_are_not_part_of_it(pieces: list[str], shown: str) -> None:
    thoughts = WithoutThoughts()
    assert "".join([*map(thoughts.feed, pieces), thoughts.end()]) == shown


async def test_neither_form_of_thinking_is_shown(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    server.answers(
        said("<think>secret", " thoughts</think>", "\nIn the cellar."),
        Answer([piece("", thinking="secret thoughts"), piece("In the cellar."), done()]),
        said("<thi"),
    )
    assert (await draft(generator))[0] == "In the cellar."
    assert (await draft(generator))[0] == "In the cellar."
    assert (await draft(generator))[0] == "<thi"


# ---------------------------------------------------------------------------------------------------------- faults

OVERFLOW_OF_LLAMA_SERVER = json.dumps(
    {"error": {"code": 400, "message": f"request (9000 tokens) exceeds the available context size ({WINDOW} tokens)"}}
)
LINE = json.dumps(piece("x" * 200_000)).encode() + b"\n"

FAULTS: dict[str, tuple[Answer, type[RAGServiceError]]] = {
    "an error after a good beginning": (
        Answer([piece("In"), {"error": f"cannot go on with {CANARY}"}]),
        LLMConnectionError,
    ),
    "out of memory after a good beginning": (
        Answer([piece("In"), {"error": f"model runner has unexpectedly stopped {CANARY}"}]),
        ModelUnavailableError,
    ),
    "too large for the memory": (
        refused(500, "model requires more system memory (5.6 GiB) than is available (3.4 GiB)"),
        ModelUnavailableError,
    ),
    "no such model": (refused(404, f"model '{MODEL}' not found"), ModelUnavailableError),
    "answered by another server": (said("In", remote_host="https://elsewhere.example"), ModelUnavailableError),
    "an end without the last line": (Answer([piece("In")]), LLMConnectionError),
    "a connection that breaks": (Answer([piece("In")], ends="cut"), LLMConnectionError),
    "a connection that breaks at once": (Answer(ends="cut"), LLMConnectionError),
    "nothing at all": (Answer(), LLMConnectionError),
    "cut at the longest response": (said("In", done_reason="length", response_tokens=64), ResponseCutError),
    "a load instead of an answer": (said(done_reason="load"), LLMConnectionError),
    "a line that is no JSON": (Answer([f'{{"message": {CANARY}\n'.encode(), done()]), LLMConnectionError),
    "a line that is no object": (Answer([b"[1]\n", done()]), LLMConnectionError),
    "a line nested deep": (Answer([b"[" * 100_000 + b"\n", done()]), LLMConnectionError),
    "a line that is not UTF-8": (Answer([b'{"message": {"content": "\xff"}}\n', done()]), LLMConnectionError),
    "half a surrogate pair": (Answer([b'{"message": {"content": "\\ud83d"}}\n', done()]), LLMConnectionError),
    "content that is no text": (Answer([{"message": {"content": 7}}, done()]), LLMConnectionError),
    "a line without an end": (Answer([b"x" * (MAX_LINE_BYTES + 1)], ends="never"), LLMConnectionError),
    "more than an answer can be": (
        Answer([LINE * (MAX_ANSWER_BYTES // len(LINE) + 1)], ends="never"),
        LLMConnectionError,
    ),
    "a page": (Answer([b"<html>Welcome"], content_type="text/html", ends="never"), LLMConnectionError),
    "a prompt that does not fit": (refused(400, "the input length exceeds the context length"), ContextTruncatedError),
    "a prompt that does not fit, by llama-server": (refused(400, OVERFLOW_OF_LLAMA_SERVER), ContextTruncatedError),
    "a prompt that does not fit, after a good beginning": (
        Answer([{"error": "the input length exceeds the context length"}]),
        ContextTruncatedError,
    ),
    "a prompt cut to the window": (said("In", prompt_tokens=WINDOW), ContextTruncatedError),
    "a prompt shifted out": (said("In", prompt_tokens=WINDOW - 8, response_tokens=9), ContextTruncatedError),
    "another bad request": (refused(400, f"illegal base64 data {CANARY}"), LLMConnectionError),
    "an error of the server": (refused(500, f"template: {CANARY}"), LLMConnectionError),
    "a page that refuses": (Answer([CANARY.encode()], status=502, content_type="text/html"), LLMConnectionError),
    "a refusal that is huge": (
        Answer([b"x" * (MAX_REFUSAL_BYTES + 1)], status=500, ends="never"),
        LLMConnectionError,
    ),
    "busy": (refused(503, "server busy, please try again. maximum pending requests exceeded"), LLMConnectionError),
}


@pytest.mark.parametrize(("answer", "kind"), FAULTS.values(), ids=FAULTS.keys())
async def test_a_fault_has_a_name_quotes_nothing_and_leaves_the_slot_free(
    server: ScriptedOllama, generator: OllamaGenerator, answer: Answer, kind: type[RAGServiceError]
) -> None:
    server.answers(answer)
    with pytest.raises(RAGServiceError) as caught:
        await draft(generator)
    assert type(caught.value) is kind
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    await server.until(lambda: server.in_hand == 0)
    server.answers(said("still here"))
    assert (await draft(generator))[0] == "still here"


async def test_an_answer_that_ends_exactly_at_the_window_is_whole(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    server.answers(said("In", prompt_tokens=WINDOW - 5, response_tokens=5))
    assert await draft(generator) == ("In", Drafted(MODEL, WINDOW - 5, 5))


async def test_counts_that_the_server_leaves_out_are_unknown(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    server.answers(Answer([piece("In"), {**piece(""), "done": True}]))
    assert await draft(generator) == ("In", Drafted(MODEL, None, None))


async def test_what_was_cut_says_at_how_many_tokens(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    server.answers(said("In", done_reason="length", response_tokens=64))
    with pytest.raises(LLMConnectionError, match="cut at 64 tokens, of 64 allowed"):
        await draft(generator)


async def test_a_missing_model_and_a_large_one_say_what_to_do(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    with pytest.raises(ModelUnavailableError, match="run: ollama pull qwen3:8b"):
        await draft(generator, model="qwen3:8b")
    server.answers(refused(500, "model requires more system memory (5.6 GiB) than is available (3.4 GiB)"))
    with pytest.raises(ModelUnavailableError, match=r"5\.6 GiB.* than is available .*3\.4 GiB"):
        await draft(generator)


@pytest.mark.parametrize(
    ("header", "retry_after_s"),
    [("17", 17.0), ("999999999", 3600.0), ("soon", LLMConnectionError.retry_after_s), ("", 5.0)],
)
async def test_a_busy_server_says_when_to_come_back(
    server: ScriptedOllama, generator: OllamaGenerator, header: str, retry_after_s: float
) -> None:
    server.answers(refused(503, "server busy", Retry_After=header))
    with pytest.raises(LLMConnectionError, match="busy") as caught:
        await draft(generator)
    assert caught.value.retry_after_s == retry_after_s


async def test_a_server_that_is_away_is_no_timeout() -> None:
    async with open_scripted_ollama() as gone:
        url = gone.url
    async with open_ollama(url, timeouts=PATIENT, concurrent=1, queue=0, keep_alive_s=0) as generator:
        for call in (draft(generator), generator.require(MODEL), generator.ping()):
            with pytest.raises(LLMConnectionError, match="no connection"):
                await call
        assert await generator.rate(ASSIGNMENT, "an answer") is None


# ---------------------------------------------------------------------------------------------------------- waiting


async def test_a_late_first_token_is_given_up_and_the_model_loaded_for_the_next_one(server: ScriptedOllama) -> None:
    server.answers(HANGS)
    async with opened(server, timeouts=replace(PATIENT, first_token_s=SOON_S)) as generator:
        with pytest.raises(LLMTimeoutError):
            await draft(generator)
        await server.until(lambda: len(server.loads) == 1)
    assert server.loads[0]["options"] == {"num_ctx": WINDOW}


async def test_a_silence_between_tokens_ends_the_draft(server: ScriptedOllama) -> None:
    server.answers(Answer([piece("In")], ends="never"))
    async with opened(server, timeouts=replace(PATIENT, between_tokens_s=SOON_S)) as generator:
        async with aclosing(generator.generate(ASSIGNMENT)) as parts:
            assert await anext(parts) == "In"
            with pytest.raises(LLMTimeoutError):
                await anext(parts)
        assert not server.loads


async def test_the_first_token_may_take_longer_than_the_ones_between(server: ScriptedOllama) -> None:
    late = asyncio.Event()
    server.answers(Answer([late, piece("In"), done()]))
    asyncio.get_running_loop().call_later(3 * SOON_S, late.set)
    async with opened(server, timeouts=replace(PATIENT, between_tokens_s=SOON_S)) as generator:
        assert (await draft(generator))[0] == "In"


async def test_no_answer_takes_longer_than_the_whole_time(server: ScriptedOllama) -> None:
    server.answers(Answer([piece("In")], ends="never"), HANGS)
    async with opened(server, timeouts=replace(PATIENT, total_s=SOON_S)) as generator:
        for _ in range(2):
            with pytest.raises(LLMTimeoutError):
                await draft(generator)


async def test_a_reader_that_takes_its_time_is_no_silent_model(server: ScriptedOllama) -> None:
    server.answers(said("In", " the", " cellar"))
    async with opened(server, timeouts=replace(PATIENT, between_tokens_s=SOON_S)) as generator:
        read = []
        async for part in generator.generate(ASSIGNMENT):
            read.append(part)
            if len(read) == 1:
                await asyncio.sleep(3 * SOON_S)
        assert read == ["In", " the", " cellar", Drafted(MODEL, 10, 5)]


async def test_as_many_chats_run_as_may_and_those_beyond_the_queue_are_refused_at_once(server: ScriptedOllama) -> None:
    rest = asyncio.Event()
    server.answers(*[Answer([piece("In"), rest, done()])] * 3)
    async with opened(server, concurrent=2, queue=1) as generator:
        drafts = {asyncio.create_task(draft(generator)) for _ in range(4)}
        refusals, others = await asyncio.wait(drafts, return_when=asyncio.FIRST_COMPLETED)
        (refusal,) = refusals
        error = refusal.exception()
        assert isinstance(error, LLMConnectionError)
        assert "busy" in str(error)
        assert error.retry_after_s == BUSY_RETRY_AFTER_S
        await server.until(lambda: server.in_hand == 2)
        rest.set()
        assert [text for text, _ in await asyncio.gather(*others)] == ["In"] * 3
    assert server.most_in_hand == 2


async def test_waiting_for_a_slot_is_part_of_the_whole_time(server: ScriptedOllama) -> None:
    server.answers(Answer([piece("In")], ends="never"))
    async with opened(server, queue=1, timeouts=replace(PATIENT, total_s=SOON_S)) as generator:
        drafts = [asyncio.create_task(draft(generator)) for _ in range(2)]
        for outcome in await asyncio.gather(*drafts, return_exceptions=True):
            assert isinstance(outcome, LLMTimeoutError)
        server.answers(said("In"))
        assert (await draft(generator))[0] == "In"


# --------------------------------------------------------------------------------------------------- going away


async def test_closing_a_draft_stops_the_model_and_frees_the_slot(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    server.answers(Answer([piece("In")], ends="never"))
    async with aclosing(generator.generate(ASSIGNMENT)) as parts:
        assert await anext(parts) == "In"
    await server.until(lambda: server.abandoned == 1)
    assert (await draft(generator))[0]


@pytest.mark.parametrize("answer", [HANGS, Answer([piece("In")], ends="never")], ids=["before", "after the first"])
async def test_cancelling_a_draft_stops_the_model_and_frees_the_slot(
    server: ScriptedOllama, generator: OllamaGenerator, answer: Answer
) -> None:
    server.answers(answer)
    drafting = asyncio.create_task(draft(generator))
    await server.until(lambda: server.in_hand == 1)
    drafting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await drafting
    await server.until(lambda: server.abandoned == 1)
    assert (await draft(generator))[0]


async def test_cancelling_one_that_waits_for_a_slot_disturbs_nobody(server: ScriptedOllama) -> None:
    rest = asyncio.Event()
    server.answers(Answer([piece("In"), rest, done()]))
    async with opened(server, queue=1) as generator:
        first = asyncio.create_task(draft(generator))
        await server.until(lambda: server.in_hand == 1)
        for _ in range(3):  # were the place in the queue not given back, the second would be refused
            waiting = asyncio.create_task(draft(generator))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        rest.set()
        assert (await first)[0] == "In"
        assert (await draft(generator))[0]


# --------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        ("llama3.2:latest", "llama3.2"),
        ("llama3.2", "llama3.2:latest"),
        ("qwen3:8b", "qwen3:8b"),
        ("Qwen3:8B", "qwen3:8b"),
        ("registry.example:5000/team/model:latest", "registry.example:5000/team/model"),
        ("my-cloudy:8b", "my-cloudy:8b"),
    ],
)
async def test_a_model_that_is_listed_is_there(
    server: ScriptedOllama, generator: OllamaGenerator, listed: str, asked: str
) -> None:
    server.models = [{"name": "other:1b"}, {"name": listed}]
    await generator.require(asked)


@pytest.mark.parametrize(
    ("listed", "asked"), [("qwen3:8b", "qwen3"), ("qwen3:8b", "qwen3:14b"), ("llama3.2:1b", "llama3.2"), (None, MODEL)]
)
async def test_a_model_of_another_tag_is_another_model(
    server: ScriptedOllama, generator: OllamaGenerator, listed: str | None, asked: str
) -> None:
    server.models = [{"name": listed}] if listed else []
    with pytest.raises(ModelUnavailableError, match=f"run: ollama pull {asked}"):
        await generator.require(asked)


def test_a_registrys_port_is_no_tag() -> None:
    assert full_name("Registry.example:5000/Team/Model") == "registry.example:5000/team/model:latest"


@pytest.mark.parametrize("model", ["gpt-oss:120b-cloud", "glm-4.6:cloud", "GPT-OSS:120B-Cloud", "kimi-cloud"])
async def test_a_model_of_the_cloud_is_never_asked_though_it_is_listed(
    server: ScriptedOllama, generator: OllamaGenerator, model: str
) -> None:
    server.models = [{"name": full_name(model)}]
    for call in (generator.require(model), draft(generator, model=model), generator.warm_up(model, window_tokens=512)):
        with pytest.raises(ModelUnavailableError, match="leave the house"):
            await call
    assert await generator.rate(replace(ASSIGNMENT, model=model), "an answer") is None
    assert not server.requests


@pytest.mark.parametrize("mark", [{"remote_host": "https://ollama.com:443"}, {"remote_model": "gpt-oss:120b"}])
async def test_a_plain_name_for_a_model_elsewhere_is_refused(
    server: ScriptedOllama, generator: OllamaGenerator, mark: dict[str, str]
) -> None:
    server.models = [{"name": "innocent:latest", **mark}]
    with pytest.raises(ModelUnavailableError, match="leave the house"):
        await generator.require("innocent")


async def test_that_a_model_is_there_is_believed_for_seconds_and_that_it_is_not_never(server: ScriptedOllama) -> None:
    now = [100.0]
    async with opened(server, clock=lambda: now[0]) as generator:
        server.models = []
        with pytest.raises(ModelUnavailableError):
            await generator.require(MODEL)
        server.models = [{"name": f"{MODEL}:latest"}]
        await generator.require(MODEL)
        server.models = []
        now[0] += KNOWN_S - 0.01
        await generator.require(MODEL)
        assert len(server.requests) == 2
        now[0] += 0.01
        with pytest.raises(ModelUnavailableError):
            await generator.require(MODEL)


async def test_that_a_model_is_there_is_forgotten_when_a_chat_finds_nobody(server: ScriptedOllama) -> None:
    async with opened(server, clock=lambda: 100.0) as generator:
        await generator.require(MODEL)
        for broken in (Answer(ends="cut"), Answer([piece("In")], ends="cut")):
            server.answers(broken)
            with pytest.raises(LLMConnectionError):
                await draft(generator)
            looked = sum(request.path == TAGS for request in server.requests)
            await generator.require(MODEL)
            await generator.require(MODEL)
            assert sum(request.path == TAGS for request in server.requests) == looked + 1


async def test_without_a_connection_nothing_is_believed_of_a_model() -> None:
    async with AsyncExitStack() as stack:
        async with open_scripted_ollama() as server:
            generator = await stack.enter_async_context(opened(server))
            await generator.require(MODEL)
        with pytest.raises(LLMConnectionError, match="no connection"):
            await draft(generator)
        with pytest.raises(LLMConnectionError, match="no connection"):
            await generator.require(MODEL)


UNREADABLE = {
    "a page": Answer([b"<html>"], content_type="text/html"),
    "not JSON": Answer([b"{"], content_type="application/json"),
    "not an object": Answer([b"[]"], content_type="application/json"),
    "refused": refused(500, "no"),
    "not found": refused(404, "404 page not found"),
    "endless": Answer([b" " * (MAX_ANSWER_BYTES + 1)], content_type="application/json", ends="never"),
}


@pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_a_server_that_answers_nonsense_is_away(
    server: ScriptedOllama, generator: OllamaGenerator, answer: Answer
) -> None:
    server.answers(answer, path=TAGS)
    server.answers(answer, path=VERSION)
    for call in (generator.require, lambda _: generator.ping()):
        with pytest.raises(LLMConnectionError) as caught:
            await call(MODEL)
        assert type(caught.value) is LLMConnectionError
        await call(MODEL)


async def test_a_server_that_is_late_is_away(server: ScriptedOllama) -> None:
    server.answers(HANGS, path=TAGS)
    server.answers(HANGS, path=VERSION)
    async with opened(server, timeouts=replace(PATIENT, lookup_s=SOON_S)) as generator:
        for call in (generator.require(MODEL), generator.ping()):
            with pytest.raises(LLMConnectionError, match="did not answer in"):
                await call


@pytest.mark.parametrize("models", ["none", 7, {"name": MODEL}])
async def test_a_list_of_models_that_is_none_is_nonsense(
    server: ScriptedOllama, generator: OllamaGenerator, models: Any
) -> None:
    server.models = models
    with pytest.raises(LLMConnectionError) as caught:
        await generator.require(MODEL)
    assert not isinstance(caught.value, ModelUnavailableError)


async def test_look_ups_share_a_connection(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    await generator.ping()
    await generator.require(MODEL)
    await generator.ping()
    assert server.connections == 1


# -------------------------------------------------------------------------------------------------------- warm-up


async def test_a_model_is_loaded_with_the_window_of_its_chats(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    await generator.warm_up(MODEL, window_tokens=WINDOW)
    assert server.loads == [
        {"model": MODEL, "messages": [], "stream": False, "options": {"num_ctx": WINDOW}, "keep_alive": 77}
    ]


async def test_a_load_goes_on_without_its_callers_and_is_one_for_all_of_them(server: ScriptedOllama) -> None:
    loaded = asyncio.Event()
    server.answers(Answer([loaded, {**piece(""), "done": True}]), path=LOAD)
    async with opened(server) as generator:
        callers = [asyncio.create_task(generator.warm_up(MODEL, window_tokens=WINDOW)) for _ in range(2)]
        await server.until(lambda: server.in_hand == 1)
        callers[0].cancel()
        await asyncio.wait([callers[0]])
        assert server.in_hand == 1
        loaded.set()
        await callers[1]
    assert len(server.loads) == 1
    assert server.abandoned == 0


async def test_a_load_ends_with_its_owner(server: ScriptedOllama) -> None:
    server.answers(HANGS, path=LOAD)
    async with opened(server) as generator:
        caller = asyncio.create_task(generator.warm_up(MODEL, window_tokens=WINDOW))
        await server.until(lambda: server.in_hand == 1)
    await server.until(lambda: server.abandoned == 1)
    await asyncio.wait([caller])
    assert caller.cancelled()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(ends="cut"), LLMConnectionError),
        (refused(500, "unable to load model: /models/blobs/sha256-0"), ModelUnavailableError),
        (refused(404, "model not found"), ModelUnavailableError),
    ],
    ids=["broken off", "too large", "missing"],
)
async def test_a_load_that_fails_says_so_and_may_be_tried_again(
    server: ScriptedOllama, generator: OllamaGenerator, answer: Answer, kind: type[RAGServiceError]
) -> None:
    server.answers(answer, path=LOAD)
    with pytest.raises(kind):
        await generator.warm_up(MODEL, window_tokens=WINDOW)
    await generator.warm_up(MODEL, window_tokens=WINDOW)


async def test_a_load_takes_so_long_and_no_longer(server: ScriptedOllama) -> None:
    server.answers(HANGS, path=LOAD)
    async with opened(server, timeouts=replace(PATIENT, load_s=SOON_S)) as generator:
        with pytest.raises(LLMConnectionError):
            await generator.warm_up(MODEL, window_tokens=WINDOW)


# --------------------------------------------------------------------------------------------------------- rating


async def test_a_rating_is_held_to_a_schema_and_shares_the_models_window(
    server: ScriptedOllama, generator: OllamaGenerator
) -> None:
    server.rating = '{"score": 85}'
    assert await generator.rate(ASSIGNMENT, "In the cellar.") == 85
    (chat,) = server.chats
    assert chat["format"]["properties"] == {"score": {"type": "integer", "minimum": 0, "maximum": 100}}
    assert chat["format"]["required"] == ["score"]
    assert chat["options"]["temperature"] == 0
    assert chat["options"]["num_ctx"] == WINDOW
    assert chat["options"]["num_predict"] <= 64
    assert chat["truncate"] is False
    assert chat["think"] is False
    asked = chat["messages"][-1]["content"]
    assert all(part in asked for part in (ASSIGNMENT.question, "is in the cellar", "In the cellar."))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 85}', 85),
        ('{"score": 0}', 0),
        ('{"score": 84.6}', 85),
        ('{"score": "85/100"}', 85),
        ('```json\n{"score": 85, "because": "2 of 3 claims"}\n```', 85),
        ('Here it is: {"score": 85}. I hope that helps with all 3 claims.', 85),
        ("85", 85),
        ("I would rate this 85/100.", 85),
        ("I would rate this 85 out of 100.", 85),
        ("92.4%", 92),
        ("Score: 85. It rests on source [1].", 85),
        ("**Score** = 100", 100),
        ('{"score": 101}', None),
        ('{"score": -1}', None),
        ('{"score": 0.85}', None),
        ('{"score": true}', None),
        ('{"score": null}', None),
        ('{"score": [85]}', None),
        ('{"score": NaN}', None),
        ('{"score": 1e999}', None),
        ("score: -5", None),
        ("8/10", None),
        ("score: 8/10", None),
        ("somewhere in 70-89", None),
        ("between 70 and 89", None),
        ("9" * 400, None),
        ("well supported", None),
        ('{"a":' * 5000, None),
        ("", None),
    ],
)
def test_of_a_rating_the_one_score_from_0_to_100_counts(text: str, score: int | None) -> None:
    assert read_score(text) == score


async def test_thoughts_are_no_part_of_a_rating(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    server.rating = "<think>between 70 and 80</think>75"
    assert await generator.rate(ASSIGNMENT, "In the cellar.") == 75


@pytest.mark.parametrize("answer", [answer for answer, _ in FAULTS.values()], ids=FAULTS.keys())
async def test_a_rating_that_fails_is_no_rating_and_leaves_the_slot_free(
    server: ScriptedOllama, generator: OllamaGenerator, answer: Answer
) -> None:
    server.answers(answer)
    assert await generator.rate(ASSIGNMENT, "In the cellar.") is None
    assert await generator.rate(ASSIGNMENT, "In the cellar.") == 80


async def test_a_rating_has_a_shorter_time_than_an_answer(server: ScriptedOllama) -> None:
    server.answers(HANGS)
    async with opened(server, timeouts=replace(PATIENT, rating_s=SOON_S)) as generator:
        assert await generator.rate(ASSIGNMENT, "In the cellar.") is None


async def test_a_ratings_time_begins_when_it_has_a_slot(server: ScriptedOllama) -> None:
    server.answers(Answer([piece("In")], ends="never"))
    async with opened(server, timeouts=replace(PATIENT, rating_s=10 * SOON_S)) as generator:
        async with aclosing(generator.generate(ASSIGNMENT)) as parts:
            assert await anext(parts) == "In"
            rating = asyncio.create_task(generator.rate(ASSIGNMENT, "In the cellar."))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(rating), 15 * SOON_S)
            assert len(server.chats) == 1
        assert await rating == 80


async def test_a_rating_waits_for_a_slot_no_longer_than_a_draft_may_take(server: ScriptedOllama) -> None:
    server.answers(Answer([piece("In")], ends="never"))
    async with (
        opened(server, timeouts=replace(PATIENT, total_s=3 * SOON_S)) as generator,
        aclosing(generator.generate(ASSIGNMENT)) as parts,
    ):
        assert await anext(parts) == "In"
        assert await generator.rate(ASSIGNMENT, "In the cellar.") is None
    assert len(server.chats) == 1


async def test_a_draft_that_is_done_is_rated_before_those_that_wait_begin(server: ScriptedOllama) -> None:
    async with opened(server, queue=8) as generator:

        async def answer() -> int | None:
            await draft(generator)
            return await generator.rate(ASSIGNMENT, "In the cellar.")

        assert await asyncio.gather(*[answer() for _ in range(8)]) == [80] * 8
    assert ["format" in chat for chat in server.chats] == [False, True] * 8
    assert server.most_in_hand == 1


async def test_a_full_line_refuses_no_rating(server: ScriptedOllama) -> None:
    rest = asyncio.Event()
    server.answers(Answer([piece("In"), rest, done()]))
    async with opened(server, queue=1) as generator:
        running = asyncio.create_task(draft(generator))
        await server.until(lambda: server.in_hand == 1)
        waiting = asyncio.create_task(draft(generator))
        rating = asyncio.create_task(generator.rate(ASSIGNMENT, "In the cellar."))
        await asyncio.sleep(0)
        with pytest.raises(LLMConnectionError, match="busy"):
            await draft(generator)
        rest.set()
        assert await rating == 80
        await asyncio.gather(running, waiting)
    assert ["format" in chat for chat in server.chats] == [False, True, False]


async def test_calls_about_a_draft_that_is_done_share_one_slot(server: ScriptedOllama) -> None:
    async with opened(server, queue=1) as generator:
        async with generator.second_calls() as ours:
            waiting = asyncio.create_task(draft(generator))
            for _ in range(2):
                await draft(ours, response_schema={"type": "object"})
            assert not waiting.done()
        await waiting
    assert ["format" in chat for chat in server.chats] == [True, True, False]


async def test_a_cancelled_rating_is_cancelled(server: ScriptedOllama, generator: OllamaGenerator) -> None:
    server.answers(HANGS)
    rating = asyncio.create_task(generator.rate(ASSIGNMENT, "In the cellar."))
    await server.until(lambda: server.in_hand == 1)
    rating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rating
    await server.until(lambda: server.abandoned == 1)
