"""Ollama's API over llama.cpp, driven by Ollama's own client, with a real model: what it says is true."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from facade import MODEL, WINDOW_TOKENS, small_facade
from servers import wait_until

from dats_common.contracts.strict_json import MAX_BODY_BYTES
from dats_common.embedded.ollama import open_facade
from dats_common.embedded.ollama.engine import Llama, open_llama
from dats_common.embedded.ollama.protocol import (
    BUSY,
    INPUT_TOO_LONG,
    PROMPT_TOO_LONG,
    RUNNER_STOPPED,
    Message,
)
from dats_common.errors import ConfigurationError

pytestmark = pytest.mark.asyncio(loop_scope="module")

HELLO = [{"role": "user", "content": "Say hello to the harbour master."}]
STEADY = {"temperature": 0, "num_predict": 8}
ENDLESS_FORMAT = {"type": "array", "items": {"type": "string", "minLength": 30}, "minItems": 500}
"""Takes the model more tokens than the window has: an answer in this form lasts until it is stopped."""
WAIT_S = 12.0
"""Less than a whole window takes on any one core, and more than what is waited for here."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base_url(model_file: Path) -> AsyncIterator[str]:
    async with small_facade() as facade:
        yield facade.base_url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ollama(base_url: str) -> AsyncIterator[Any]:
    """Ollama's own client."""
    from ollama import AsyncClient

    async with AsyncClient(host=base_url, timeout=60, trust_env=False) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """For what Ollama's own client cannot or will not send."""
    async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def llama(model_file: Path) -> AsyncIterator[Llama]:
    """llama.cpp with the same model, on its own: what it counts is what the facade must say."""
    async with open_llama(model_file, window_tokens=WINDOW_TOKENS, threads=1) as opened:
        yield opened


def long_text(words: int) -> str:
    return " ".join(f"{number} crates" for number in range(words // 2))


# ---------------------------------------------------------------------------------------------------------- models


async def test_it_says_that_ollama_runs_and_which_version(http: httpx.AsyncClient) -> None:
    assert (await http.get("/")).text == "Ollama is running"
    assert (await http.get("/api/version")).json()["version"].count(".") == 2


async def test_the_list_has_each_file_under_its_full_name(ollama: Any, model_file: Path) -> None:
    (model,) = (await ollama.list()).models
    assert model.model == MODEL
    assert model.size == model_file.stat().st_size
    assert (model.details.family, model.details.parameter_size) == ("llama", "134.52M")
    assert model.details.quantization_level == "Q4_1"


async def test_show_has_the_window_that_the_model_was_trained_for(ollama: Any) -> None:
    shown = await ollama.show("smollm2")
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.modelinfo["general.parameter_count"] == 134_515_008
    assert shown.capabilities == ["completion"]
    assert "<|im_start|>" in shown.template


async def test_show_has_the_vocabulary_only_where_it_is_asked_to_be_verbose(
    http: httpx.AsyncClient, llama: Llama
) -> None:
    shown = (await http.post("/api/show", json={"model": MODEL, "verbose": True})).json()["model_info"]
    brief = (await http.post("/api/show", json={"model": MODEL})).json()["model_info"]
    tokens = shown["tokenizer.ggml.tokens"]
    numbers = (await llama.call("/tokenize", {"content": "Say hello", "add_special": False}))["tokens"]
    assert [tokens[number] for number in numbers] == ["Say", "Ġhello"]
    assert len(shown["tokenizer.ggml.token_type"]) == len(tokens) == 49152
    assert shown["tokenizer.ggml.merges"][0] == "Ġ t"
    assert {name for name in shown if brief[name] is None} == {name for name in shown if type(shown[name]) is list}
    assert brief["tokenizer.ggml.tokens"] is None
    assert brief["tokenizer.ggml.pre"] == shown["tokenizer.ggml.pre"] == "smollm"


async def test_a_model_is_loaded_by_a_request_without_a_prompt_and_unloaded_by_a_keep_alive_of_nothing(
    ollama: Any,
) -> None:
    assert (await ollama.chat(MODEL)).done_reason == "load"
    (running,) = (await ollama.ps()).models
    assert (running.model, running.context_length) == (MODEL, WINDOW_TOKENS)
    assert (await ollama.generate(MODEL, keep_alive=0)).done_reason == "unload"
    assert (await ollama.ps()).models == []
    answered = await ollama.chat(MODEL, messages=HELLO, options=STEADY, keep_alive="0s")
    assert answered.done_reason == "length"
    assert (await ollama.ps()).models == []


@pytest.mark.parametrize("name", ["SmolLM2", "smollm2:LATEST"])
async def test_names_are_compared_without_case_and_with_the_tag_that_is_meant(ollama: Any, name: str) -> None:
    answered = await ollama.chat(name, messages=HELLO, options={"num_predict": 1})
    assert answered.model == name


async def test_a_model_that_is_not_served_is_not_found(ollama: Any) -> None:
    from ollama import ResponseError

    for call in (
        ollama.chat("other", messages=HELLO),
        ollama.generate("smollm2:135m", prompt="Hello"),
        ollama.embed("other", "Hello"),
        ollama.show("other"),
    ):
        with pytest.raises(ResponseError, match=r"^model '(other|smollm2:135m)' not found") as refusal:
            await call
        assert refusal.value.status_code == 404


# --------------------------------------------------------------------------------------------------------- answers


async def test_a_stream_and_one_answer_say_the_same_and_end_alike(ollama: Any) -> None:
    whole = await ollama.chat(MODEL, messages=HELLO, options=STEADY)
    lines = [line async for line in await ollama.chat(MODEL, messages=HELLO, options=STEADY, stream=True)]
    assert len(lines) > 2
    assert "".join(line.message.content for line in lines) == whole.message.content != ""
    assert [line.done for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert (last.done_reason, last.prompt_eval_count, last.eval_count) == (
        whole.done_reason,
        whole.prompt_eval_count,
        whole.eval_count,
    )
    assert 0 < last.prompt_eval_duration + last.eval_duration <= last.total_duration


async def test_generate_reads_its_prompt_as_a_conversation(ollama: Any) -> None:
    rules = {"role": "system", "content": "You answer in one word."}
    chatted = await ollama.chat(MODEL, messages=[rules, *HELLO], options=STEADY)
    generated = await ollama.generate(MODEL, prompt=HELLO[0]["content"], system=rules["content"], options=STEADY)
    assert generated.response == chatted.message.content
    assert generated.prompt_eval_count == chatted.prompt_eval_count


async def test_the_prompt_count_is_the_engines_own_also_where_it_remembers_the_prompt(
    ollama: Any, llama: Llama
) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": long_text(30)}]
    counted = await llama.count([Message(**message) for message in messages])
    written = await llama.call("/apply-template", {"messages": messages})
    tokens = (await llama.call("/tokenize", {"content": written["prompt"], "parse_special": True}))["tokens"]
    assert counted == len(tokens)
    for _ in range(2):
        answered = await ollama.chat(MODEL, messages=messages, options={"num_predict": 1})
        assert answered.prompt_eval_count == counted
        assert answered.eval_count == 1


async def test_an_answer_that_reaches_its_limit_says_so_and_one_that_stops_says_that(ollama: Any) -> None:
    cut = await ollama.chat(MODEL, messages=HELLO, options={**STEADY, "num_predict": 3})
    assert (cut.done_reason, cut.eval_count) == ("length", 3)
    word = cut.message.content.split()[1]
    stopped = await ollama.chat(MODEL, messages=HELLO, options={**STEADY, "num_predict": 24, "stop": [word]})
    assert stopped.done_reason == "stop"
    assert word not in stopped.message.content


async def test_an_answer_ends_where_the_window_does(ollama: Any) -> None:
    options = {"temperature": 0, "num_ctx": 64}
    answered = await ollama.chat(MODEL, messages=HELLO, options=options, format=ENDLESS_FORMAT)
    assert answered.done_reason == "length"
    assert answered.prompt_eval_count + answered.eval_count == 64


async def test_the_same_seed_writes_the_same(ollama: Any) -> None:
    options = {"temperature": 1.5, "num_predict": 12}
    first, again, other = [
        (await ollama.chat(MODEL, messages=HELLO, options={**options, "seed": seed})).message.content
        for seed in (7, 7, 8)
    ]
    assert first == again != other


async def test_an_answer_keeps_to_the_schema_it_was_given(ollama: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["score"],
        "additionalProperties": False,
    }
    answered = await ollama.chat(MODEL, messages=HELLO, format=schema, options={"temperature": 0, "num_predict": 24})
    rated = json.loads(answered.message.content)
    assert set(rated) == {"score"}
    assert rated["score"] in range(10)


async def test_an_answer_in_json_begins_as_json(ollama: Any) -> None:
    answered = await ollama.generate(MODEL, prompt="Hello", format="json", options=STEADY)
    assert answered.response.lstrip().startswith(("{", "["))


async def test_logprobs_are_of_the_tokens_that_were_written(ollama: Any) -> None:
    answered = await ollama.chat(MODEL, messages=HELLO, options=STEADY, logprobs=True, top_logprobs=2)
    assert "".join(one.token for one in answered.logprobs) == answered.message.content
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in answered.logprobs)


async def test_an_embedding_is_a_unit_vector_of_the_text_alone(ollama: Any) -> None:
    together = await ollama.embed(MODEL, ["a red boat", "a blue boat", "a red boat"])
    alone = await ollama.embed(MODEL, "a blue boat")
    assert together.embeddings[0] == together.embeddings[2] != together.embeddings[1]
    assert together.embeddings[1] == pytest.approx(alone.embeddings[0], abs=1e-3)
    assert math.hypot(*alone.embeddings[0]) == pytest.approx(1)
    assert together.prompt_eval_count == 3 * alone.prompt_eval_count == 9
    (cut,) = (await ollama.embed(MODEL, "a blue boat", dimensions=16)).embeddings
    assert len(cut) == 16
    assert math.hypot(*cut) == pytest.approx(1)


# -------------------------------------------------------------------------------------------------------- refusals


async def test_a_prompt_over_the_window_is_refused_where_nothing_may_be_cut(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "truncate": False, "options": {"num_predict": 1}}
    for fits, text in ((True, long_text(30)), (False, long_text(WINDOW_TOKENS))):
        for path, said in (
            ("/api/chat", {"messages": [{"role": "user", "content": text}]}),
            ("/api/generate", {"prompt": text}),
            ("/api/embed", {"input": text}),
        ):
            answer = await http.post(path, json={**body, **said})
            assert answer.status_code == (200 if fits else 400), path
            assert fits or answer.json() == {"error": INPUT_TOO_LONG}, path


async def test_the_window_can_be_asked_to_be_smaller_and_not_larger(http: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": long_text(30)}]
    for num_ctx, text, status in ((64, messages, 400), (4 * WINDOW_TOKENS, messages, 200)):
        options = {"num_ctx": num_ctx, "num_predict": 1}
        body = {"model": MODEL, "messages": text, "truncate": False, "options": options}
        assert (await http.post("/api/chat", json=body)).status_code == status
    body["messages"] = [{"role": "user", "content": long_text(WINDOW_TOKENS)}]
    assert (await http.post("/api/chat", json=body)).status_code == 400


async def test_where_it_may_be_cut_the_oldest_messages_go_and_the_rules_stay(ollama: Any) -> None:
    from ollama import ResponseError

    rules, question = {"role": "system", "content": "Be brief."}, HELLO[0]
    old = [{"role": role, "content": long_text(60)} for role in ("user", "assistant")]
    options = {**STEADY, "num_ctx": 120}
    kept = await ollama.chat(MODEL, messages=[rules, question], options=options)
    cut = await ollama.chat(MODEL, messages=[rules, *old, question], options=options)
    assert cut.prompt_eval_count == kept.prompt_eval_count
    assert cut.message.content == kept.message.content
    with pytest.raises(ResponseError, match=PROMPT_TOO_LONG) as refusal:
        await ollama.chat(MODEL, messages=[rules, old[0]], options=options)
    assert refusal.value.status_code == 400


async def test_thinking_tools_and_images_are_refused_and_not_thinking_is_not(ollama: Any) -> None:
    from ollama import ResponseError

    tool = {"type": "function", "function": {"name": "f", "description": "", "parameters": {"type": "object"}}}
    picture = [{"role": "user", "content": "What is this?", "images": ["aGFyYm91cg=="]}]
    for missing, call in {
        "thinking": ollama.chat(MODEL, messages=HELLO, think=True),
        "tools": ollama.chat(MODEL, messages=HELLO, tools=[tool]),
        "images": ollama.chat(MODEL, messages=picture),
        "raw": ollama.generate(MODEL, prompt="Hello", raw=True),
    }.items():
        with pytest.raises(ResponseError, match=f'^"{MODEL}" does not support {missing}') as refusal:
            await call
        assert refusal.value.status_code == 400
    answered = await ollama.chat(MODEL, messages=HELLO, think=False, options={"num_predict": 1})
    assert answered.message.content


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"messages": []}',
        b'{"model": "smollm2", "messages": "hello"}',
        b'{"model": "smollm2", "messages": [{"content": "hello"}]}',
        b'{"model": "smollm2", "messages": [{"role": "user", "content": 7}]}',
        b'{"model": "smollm2", "messages": [], "options": {"temperature": "hot"}}',
        b'{"model": "smollm2", "messages": [], "options": {"num_predict": 1e99}}',
        b'{"model": "smollm2", "messages": [], "format": "yaml"}',
        b'{"model": "smollm2", "messages": [{"role": "user", "content": "a"}], "format": {"type": "nonsense"}}',
        b'{"model": "smollm2", "messages": [], "logprobs": true, "top_logprobs": 21}',
    ],
    ids=lambda body: body.decode()[-40:],
)
async def test_a_bad_body_is_refused_and_the_next_is_answered(http: httpx.AsyncClient, body: bytes) -> None:
    refused = await http.post("/api/chat", content=body)
    assert refused.status_code == 400
    assert refused.json()["error"]
    good = {"model": MODEL, "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
    assert (await http.post("/api/chat", json=good)).status_code == 200


async def test_a_body_that_is_too_large_is_refused_before_it_is_read(http: httpx.AsyncClient) -> None:
    assert (await http.post("/api/chat", content=b"[" * (MAX_BODY_BYTES + 1))).status_code == 413


async def test_the_engine_answers_nobody_without_its_key(llama: Llama) -> None:
    async with httpx.AsyncClient(base_url=llama.base_url, timeout=60, trust_env=False) as stranger:
        refused = await stranger.post("/v1/chat/completions", json={"messages": HELLO, "n_predict": 1})
    assert refused.status_code == 401


# ---------------------------------------------------------------------------------------------------------- faults


@contextlib.asynccontextmanager
async def endless_answer(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[str]]:
    """An answer that has begun, and would go on for the whole window."""
    body = {"model": MODEL, "messages": HELLO, "format": ENDLESS_FORMAT, "logprobs": True}
    async with client.stream("POST", "/api/chat", json=body) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        await anext(lines)
        yield lines


async def short_answer(client: httpx.AsyncClient) -> httpx.Response:
    body = {"model": MODEL, "messages": HELLO, "stream": False, "options": {"num_predict": 1}}
    return await client.post("/api/chat", json=body)


async def test_when_too_many_wait_the_next_is_told_that_the_server_is_busy(model_file: Path) -> None:
    async with (
        small_facade(pending=0) as facade,
        httpx.AsyncClient(base_url=facade.base_url, timeout=60, trust_env=False) as client,
    ):
        async with endless_answer(client):
            busy = await short_answer(client)
            assert (busy.status_code, busy.json()) == (503, {"error": BUSY})
            for path in ("/api/ps", "/api/tags"):
                assert (await client.get(path)).status_code == 200
        await _answered(client)


async def _answered(client: httpx.AsyncClient) -> None:
    """The model has nothing else to do: its turn is free long before the answer that was left could have ended."""
    async with asyncio.timeout(WAIT_S):
        while (answer := await short_answer(client)).status_code == 503:
            await asyncio.sleep(0.05)
    assert answer.status_code == 200


async def test_a_client_that_goes_away_stops_its_answer_and_leaves_the_queue(http: httpx.AsyncClient) -> None:
    async with endless_answer(http):
        waiting = [asyncio.create_task(short_answer(http)) for _ in range(3)]
        with contextlib.suppress(httpx.ReadTimeout):
            await http.post("/api/chat", json={"model": MODEL, "messages": HELLO}, timeout=0.2)
    async with asyncio.timeout(WAIT_S):
        answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200] * 3


def _engines(parent: int) -> list[int]:
    """Processes of llama.cpp that this process has started."""
    children = Path(f"/proc/{parent}/task").glob("*/children")
    pids = [int(pid) for listed in children for pid in listed.read_text().split()]
    return [pid for pid in pids if b"ollama.runner" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def test_an_engine_that_dies_fails_its_answer_only(model_file: Path) -> None:
    others = set(_engines(os.getpid()))
    async with (
        small_facade() as facade,
        httpx.AsyncClient(base_url=facade.base_url, timeout=60, trust_env=False) as client,
    ):
        async with endless_answer(client) as lines:
            (engine,) = set(_engines(os.getpid())) - others
            os.kill(engine, signal.SIGKILL)
            rest = [json.loads(line) async for line in lines]
        assert rest[-1] == {"error": RUNNER_STOPPED}
        assert (await short_answer(client)).status_code == 200


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL)], ids=["stopped", "killed"]
)
async def test_no_engine_outlives_a_facade_that_is(model_file: Path, number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-m", "dats_common.embedded.ollama", f"small={model_file}", "--port=0", "--window=512"]
    with subprocess.Popen([*command, "--threads=1"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base_url = (await asyncio.to_thread(process.stdout.readline)).split()[-1]
            async with httpx.AsyncClient(base_url=base_url, timeout=60, trust_env=False) as client:
                loaded = await client.post("/api/generate", json={"model": "small"})
                assert loaded.json()["done_reason"] == "load"
            (engine,) = _engines(process.pid)
            process.send_signal(number)
            assert await asyncio.to_thread(process.wait, WAIT_S) == status
        finally:
            process.kill()
    await asyncio.to_thread(wait_until, lambda: not _runs(engine), timeout_s=WAIT_S, what="the engine's end")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------------------------------------------------- starts


async def test_a_start_that_cannot_work_is_refused_and_says_what_to_do(model_file: Path, tmp_path: Path) -> None:
    text, cut, huge = tmp_path / "a.txt", tmp_path / "cut.gguf", tmp_path / "huge.gguf"
    text.write_text("not a model")
    cut.write_bytes(model_file.read_bytes()[:5000])
    huge.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**60))
    for models, said in (
        ({}, "name at least one GGUF file"),
        ({"a": tmp_path / "none.gguf"}, "No such file.*Name a GGUF file"),
        ({"a": text}, "does not begin with GGUF.*Name a complete one"),
        ({"a": cut}, "ends inside its header.*Name a complete one"),
        ({"a": huge}, "has a value of 1152921504606846976 bytes"),
        ({"a": model_file, "A:latest": model_file}, "named twice"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            async with open_facade(models):
                pass


async def test_a_port_that_is_taken_is_refused(model_file: Path, base_url: str) -> None:
    port = int(base_url.rpartition(":")[2])
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}.*choose another port"):
        async with open_facade({"a": model_file}, port=port):
            pass


async def test_a_file_without_its_weights_is_told_to_whoever_asks_for_it(model_file: Path, tmp_path: Path) -> None:
    headless = tmp_path / "cut.gguf"
    headless.write_bytes(model_file.read_bytes()[:20_000_000])
    async with (
        open_facade({"cut": headless}, threads=1) as facade,
        httpx.AsyncClient(base_url=facade.base_url, timeout=60, trust_env=False) as client,
    ):
        answer = await client.post("/api/chat", json={"model": "cut", "messages": HELLO})
        assert answer.status_code == 500
        assert f"llama.cpp cannot load {headless}: name another GGUF file" in answer.json()["error"]
