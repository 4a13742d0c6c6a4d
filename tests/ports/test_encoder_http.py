"""The encoder of another server: what it sends, what it makes of answers, and of every way in which they fail."""

from __future__ import annotations

import asyncio
import json
import socket
import traceback
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scripted_encoder import (
    EMBED,
    EMBEDDINGS,
    HANGS,
    MODEL,
    SHOW,
    Reply,
    ScriptedEncoder,
    open_scripted_encoder,
    refused,
    vectors_of,
)

from dats_common.adapters.encoder_http import HttpEncoder, Remote, open_gateway_encoder, open_ollama_encoder
from dats_common.adapters.encoder_http.encoder import DOCUMENT_REQUESTS, MAX_BYTES_A_TEXT, MOST_WINDOWS, QUERY_REQUESTS
from dats_common.adapters.encoder_http.estimate import token_spans
from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.memory_index import MemoryIndex
from dats_common.errors import ConfigurationError, EncoderUnavailable
from dats_common.settings import Settings, load_settings
from services.backends import open_encoder, prepare_index

CANARY = "hunter2canary"
KEY = "sk-secret2canary"
PATIENT = Remote(MODEL, api_key=KEY, batch_size=4, timeout_s=30, connect_timeout_s=5)
SOON_S = 0.1
"""A timeout that a test lets pass."""
OPENERS = {EMBED: open_ollama_encoder, EMBEDDINGS: open_gateway_encoder}
TWIN = MemoryEncoder()


@pytest.fixture(params=OPENERS)
def path(request: pytest.FixtureRequest) -> str:
    """Which protocol, by the path that is asked."""
    return str(request.param)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedEncoder]:
    async with open_scripted_encoder(TWIN) as scripted:
        scripted.api_key = KEY
        yield scripted


@pytest.fixture
async def encoder(path: str, server: ScriptedEncoder) -> AsyncIterator[HttpEncoder]:
    """Open, and the server has forgotten the opening."""
    async with opened(path, server) as http:
        server.requests.clear()
        yield http


def opened(path: str, server: ScriptedEncoder, **changes: Any) -> AbstractAsyncContextManager[HttpEncoder]:
    return OPENERS[path](server.url, replace(PATIENT, **changes))


async def start(path: str, server: ScriptedEncoder, **changes: Any) -> None:
    async with opened(path, server, **changes):
        pass


async def encode(encoder: HttpEncoder, *texts: str) -> Any:
    return await encoder.encode(texts or [CANARY], kind="document")


def words(count: int) -> str:
    return " ".join(["one"] * count)


def texts_of(server: ScriptedEncoder) -> list[list[str]]:
    return [body["input"] for body in server.asked]


# --------------------------------------------------------------------------------------------------- what is asked


async def test_ollama_is_asked_for_vectors_of_whole_texts_by_a_model_with_the_named_window(
    server: ScriptedEncoder,
) -> None:
    async with opened(EMBED, server, window_tokens=700) as encoder:
        await encode(encoder, "a", "b")
    assert [request.path for request in server.requests] == [SHOW, EMBED, EMBED]
    assert server.asked[-1] == {"model": MODEL, "input": ["a", "b"], "truncate": False, "options": {"num_ctx": 700}}


async def test_a_gateway_is_asked_as_openai_is(server: ScriptedEncoder) -> None:
    async with opened(EMBEDDINGS, server) as encoder:
        await encode(encoder, "a", "b")
    assert server.requests[-1].path == "/v1/embeddings"
    assert server.asked[-1] == {"model": MODEL, "input": ["a", "b"]}


async def test_a_gateways_address_has_its_own_version_in_it(server: ScriptedEncoder) -> None:
    async with open_gateway_encoder(f"{server.url}/api/v1/", PATIENT):
        assert server.requests[-1].path == "/api/v1/embeddings"


async def test_the_key_goes_along(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    await encode(encoder)
    assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"


async def test_vectors_are_the_servers_in_the_order_of_the_texts_over_all_requests(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    texts = [f"text number {number}" for number in range(11)]
    vectors = await encoder.encode(texts, kind="document")
    assert sorted(map(len, texts_of(server))) == [3, 4, 4]
    assert np.allclose(vectors, await TWIN.encode(texts, kind="document"), atol=1e-6)


async def test_each_kind_of_text_has_its_prefix_and_the_window_room_for_it(path: str, server: ScriptedEncoder) -> None:
    async with opened(path, server, query_prefix="ask: ", document_prefix="search_document: ") as encoder:
        server.requests.clear()
        await encoder.encode(["a"], kind="query")
        await encoder.encode(["b", ""], kind="document")
        assert encoder.max_tokens == PATIENT.window_tokens - len(token_spans("search_document: "))
    assert texts_of(server) == [["ask: a"], ["search_document: b", "search_document: "]]


async def test_prefixes_that_take_the_window_stop_the_start(path: str, server: ScriptedEncoder) -> None:
    with pytest.raises(ConfigurationError, match="query_prefix"):
        await start(path, server, query_prefix=words(40), window_tokens=64)


async def test_what_servers_refuse_is_never_sent(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    await encode(encoder, "", "half a pair: \ud83d")
    assert texts_of(server) == [[" ", "half a pair: ?"]]


async def test_documents_are_asked_for_few_at_a_time_and_queries_pass_them(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    go = asyncio.Event()
    server.answers(*[Reply(vectors_of(path_of(encoder), *[[1.0] * 64] * 4).body, after=go)] * DOCUMENT_REQUESTS)
    documents = asyncio.create_task(encode(encoder, *map(str, range(40))))
    await server.until(lambda: server.in_hand == DOCUMENT_REQUESTS)
    await encoder.encode(["which comes first?"], kind="query")
    assert server.most_in_hand == DOCUMENT_REQUESTS + 1
    assert not documents.done()
    go.set()
    await documents
    assert server.most_in_hand <= DOCUMENT_REQUESTS + 1


async def test_queries_are_bounded_too(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    go = asyncio.Event()
    server.answers(*[Reply(vectors_of(path_of(encoder), [1.0] * 64).body, after=go)] * 40)
    queries = [asyncio.create_task(encoder.encode(["q"], kind="query")) for _ in range(40)]
    await server.until(lambda: server.in_hand == QUERY_REQUESTS)
    go.set()
    await asyncio.gather(*queries)
    assert server.most_in_hand == QUERY_REQUESTS


async def test_neither_a_redirect_nor_a_proxy_of_the_environment_sees_texts_or_the_key(
    path: str, server: ScriptedEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_scripted_encoder(TWIN) as elsewhere:
        monkeypatch.setenv("HTTP_PROXY", elsewhere.url)
        monkeypatch.setenv("ALL_PROXY", elsewhere.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with opened(path, server) as encoder:
            server.answers(Reply(status=307, headers={"Location": f"{elsewhere.url}{path}"}))
            with pytest.raises(EncoderUnavailable, match="307"):
                await encode(encoder)
            await encode(encoder)
        assert elsewhere.requests == []


# ------------------------------------------------------------------------------------------------- at the start


async def test_the_dimension_is_what_the_server_makes(path: str, server: ScriptedEncoder) -> None:
    async with opened(path, server) as encoder:
        assert (encoder.dimension, encoder.max_tokens) == (64, 512)
    async with opened(path, server, dimensions=16) as encoder:
        assert encoder.dimension == 16
        assert (await encode(encoder)).shape == (1, 16)
    assert {body.get("dimensions") for body in server.asked} == {None, 16}


async def test_a_server_that_does_not_shorten_vectors_stops_the_start(path: str, server: ScriptedEncoder) -> None:
    server.shortens = False
    with pytest.raises(ConfigurationError, match=r"embedding\.dimensions is 16.* 64 numbers: set it to 0"):
        await start(path, server, dimensions=16)


async def test_a_model_that_is_not_there_stops_the_start(path: str, server: ScriptedEncoder) -> None:
    with pytest.raises(ConfigurationError, match=r"'other'.*EMBEDDING_MODEL"):
        await start(path, server, model="other")


@pytest.mark.parametrize("key", [None, "sk-other"])
async def test_a_key_that_is_not_good_stops_the_start_and_is_not_told(
    path: str, server: ScriptedEncoder, key: str | None
) -> None:
    with pytest.raises(ConfigurationError, match="MODEL_GATEWAY_API_KEY") as refusal:
        await start(path, server, api_key=key)
    assert "sk-" not in "".join(traceback.format_exception(refusal.value))


async def test_a_key_that_no_header_can_hold_stops_the_start_and_is_not_told(
    path: str, server: ScriptedEncoder
) -> None:
    with pytest.raises(ConfigurationError, match="MODEL_GATEWAY_API_KEY") as refusal:
        await start(path, server, api_key=f"{KEY}\n")
    assert KEY not in "".join(traceback.format_exception(refusal.value))


def test_the_key_is_not_shown() -> None:
    assert KEY not in repr(PATIENT)


async def test_a_server_that_is_away_is_no_mistake_of_configuration(path: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(EncoderUnavailable, match="no connection"):
            async with OPENERS[path](f"http://127.0.0.1:{taken.getsockname()[1]}", PATIENT):
                pass


@pytest.mark.parametrize("status", [400, 405, 422])
async def test_a_request_that_the_server_does_not_take_stops_the_start(
    path: str, server: ScriptedEncoder, status: int
) -> None:
    server.answers(refused(status, "this model does not support dimensions"))
    with pytest.raises(ConfigurationError, match=rf"{status}.*embedding\.dimensions"):
        await start(path, server)


async def test_a_model_that_reads_less_than_it_shall_stops_the_start(server: ScriptedEncoder) -> None:
    server.shown = {"model_info": {"general.architecture": "bert", "bert.context_length": 256}}
    with pytest.raises(ConfigurationError, match=r"reads 256 tokens: set embedding\.window_tokens"):
        await start(EMBED, server)
    await start(EMBED, server, window_tokens=256)


async def test_a_model_that_ollama_has_elsewhere_stops_the_start(server: ScriptedEncoder) -> None:
    server.shown |= {"remote_host": "https://ollama.com"}
    with pytest.raises(ConfigurationError, match="leave the house"):
        await start(EMBED, server)


async def test_ollamas_names_for_one_model_are_one_name(server: ScriptedEncoder) -> None:
    index = MemoryIndex()
    for name in (MODEL, f"{MODEL}:latest", "Nomic-Embed-Text"):
        async with opened(EMBED, server, model=name) as encoder:
            await prepare_index(index, encoder)
            assert encoder.model == MODEL


@pytest.mark.parametrize(
    "url",
    ["localhost:11434", "", "http://", "ftp://host", "http://host:port", f"http://u:{CANARY}@host", "http://host/?a=b"],
)
async def test_what_is_no_address_stops_the_start_and_a_password_in_it_is_not_told(path: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match="MODEL_GATEWAY_URL") as refusal:
        async with OPENERS[path](url, PATIENT):
            pass
    assert CANARY not in "".join(traceback.format_exception(refusal.value))


# --------------------------------------------------------------------------------------------------- failing answers


def path_of(encoder: HttpEncoder) -> str:
    return EMBED if encoder.backend == "ollama" else EMBEDDINGS


GOOD = [1.0] * 64
BROKEN: dict[str, tuple[Any, ...]] = {
    "fewer": (),
    "more": (GOOD, GOOD),
    "shorter": (GOOD[1:],),
    "empty": ([],),
    "nan": ([float("nan"), *GOOD[1:]],),
    "infinite": ([1e999, *GOOD[1:]],),
    "too large": ([1e300] * 64,),
    "zero": ([0.0] * 64,),
    "text": (["1.0"] * 64,),
    "null": ([None] * 64,),
    "nested": ([[1.0]] * 64,),
    "no list": ("AAAA",),
}


@pytest.mark.parametrize("vectors", BROKEN.values(), ids=BROKEN)
async def test_vectors_that_are_not_what_was_asked_for_are_refused(
    encoder: HttpEncoder, server: ScriptedEncoder, vectors: tuple[Any, ...]
) -> None:
    server.answers(vectors_of(path_of(encoder), *vectors))
    await fails(encoder, server)


async def test_vectors_of_different_lengths_are_refused(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    server.answers(vectors_of(path_of(encoder), GOOD, GOOD[1:]))
    with pytest.raises(EncoderUnavailable):
        await encode(encoder, "a", "b")


async def test_another_dimension_than_at_the_start_is_told_with_what_to_do(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    server.answers(vectors_of(path_of(encoder), GOOD[:32]))
    with pytest.raises(EncoderUnavailable, match=r"32 numbers.* 64.*restart"):
        await encode(encoder)


@pytest.mark.parametrize("entries", [[{"index": 1}], [{"embedding": GOOD}], [GOOD], [{"index": 5, "embedding": GOOD}]])
async def test_a_gateways_entries_must_say_which_text_they_are_of(server: ScriptedEncoder, entries: Any) -> None:
    async with opened(EMBEDDINGS, server) as encoder:
        server.requests.clear()
        server.answers(Reply({"data": entries}))
        await fails(encoder, server)


UNREADABLE: dict[str, Reply] = {
    "a page": Reply(b"<html>hunter2canary</html>"),
    "truncated": Reply(b'{"embeddings": [[0.1, 0.2'),
    "nothing": Reply(b""),
    "a list": Reply(b"[]"),
    "another object": Reply({"error": CANARY}),
    "deeply nested": Reply(b"[" * 100_000),
    "no UTF-8": Reply(b'{"embeddings": "\xff"}'),
}


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE)
async def test_what_cannot_be_read_is_refused_and_not_told(
    encoder: HttpEncoder, server: ScriptedEncoder, reply: Reply
) -> None:
    server.answers(reply)
    await fails(encoder, server)


async def test_an_answer_without_end_is_given_up(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    server.answers(Reply(b" " * (2 * MAX_BYTES_A_TEXT + 1)))
    with pytest.raises(EncoderUnavailable, match="more than"):
        await encode(encoder)


@pytest.mark.parametrize("status", [500, 501, 408, 400, 401, 403, 404, 422])
async def test_a_refusal_is_told_by_its_status_and_not_asked_again(
    encoder: HttpEncoder, server: ScriptedEncoder, status: int
) -> None:
    server.answers(refused(status, f"{CANARY} {KEY}"))
    await fails(encoder, server)


async def fails(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    """One request, one error of the port, and neither the text nor the key in it."""
    with pytest.raises(EncoderUnavailable) as failure:
        await encode(encoder)
    assert len(server.requests) == 1
    told = "".join(traceback.format_exception(failure.value))
    assert CANARY not in told
    assert KEY not in told
    await encode(encoder)  # the slot was given back


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_server_that_is_busy_for_a_moment_is_asked_again(
    encoder: HttpEncoder, server: ScriptedEncoder, status: int
) -> None:
    server.answers(*[refused(status, "busy", Retry_After="0")] * 2)
    assert (await encode(encoder)).shape == (1, 64)
    assert len(server.asked) == 3


async def test_a_server_that_stays_busy_is_given_up(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    server.answers(*[refused(503, CANARY)] * 4)
    with pytest.raises(EncoderUnavailable, match="503: it is busy"):
        await encode(encoder)
    assert len(server.asked) == 3


async def test_a_server_that_wants_a_longer_pause_than_there_is_time_is_not_asked_again(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    server.answers(refused(429, "slow down", Retry_After="77"))
    with pytest.raises(EncoderUnavailable, match="429") as failure:
        await encode(encoder)
    assert failure.value.retry_after_s == 77
    assert len(server.asked) == 1


@pytest.mark.parametrize("ends", ["cut", "dropped"])
async def test_a_connection_that_breaks_is_made_again(encoder: HttpEncoder, server: ScriptedEncoder, ends: Any) -> None:
    broken = replace(vectors_of(path_of(encoder), GOOD), ends=ends)
    server.answers(broken, broken)
    assert (await encode(encoder)).shape == (1, 64)
    server.answers(*[broken] * 3)
    with pytest.raises(EncoderUnavailable, match="broke off"):
        await encode(encoder)


async def test_a_server_that_is_late_is_given_up_in_time(path: str, server: ScriptedEncoder) -> None:
    async with opened(path, server, timeout_s=SOON_S) as encoder:
        server.answers(HANGS)
        with pytest.raises(EncoderUnavailable, match="in time"):
            await encode(encoder)
        assert server.asked[-1]["input"] == [CANARY]


async def test_who_waits_behind_requests_that_hang_is_given_up_with_them(path: str, server: ScriptedEncoder) -> None:
    turns, timeout_s = 3, 1.0
    async with opened(path, server, timeout_s=timeout_s, batch_size=1) as encoder:
        server.answers(*[HANGS] * turns * DOCUMENT_REQUESTS)
        calls = (encode(encoder, f"{number}") for number in range(turns * DOCUMENT_REQUESTS))
        async with asyncio.timeout((turns - 0.5) * timeout_s):  # one turn after the other would take longer
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [EncoderUnavailable] * turns * DOCUMENT_REQUESTS


async def test_one_failed_request_fails_the_call_and_stops_the_others(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    server.answers(HANGS, refused(500, "no"))
    with pytest.raises(EncoderUnavailable, match="500"):
        await encode(encoder, *map(str, range(40)))
    assert len(server.asked) <= 3


# ---------------------------------------------------------------------------------------------- texts that do not fit


async def test_texts_that_are_too_long_together_are_asked_for_apart(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    texts = ["one two", "three", "four", "five six"]
    server.answers(refused(413, "batch size 4 > maximum allowed batch size 2"))
    vectors = await encoder.encode(texts, kind="document")
    assert texts_of(server) == [texts, texts[:2], texts[2:]]
    assert np.allclose(vectors, await TWIN.encode(texts, kind="document"), atol=1e-6)


@pytest.mark.parametrize(
    "words_of_refusal",
    [
        "the input length exceeds the context length",
        "This model's maximum context length is 512 tokens, however you requested 900 tokens",
        "`inputs` must have less than 512 tokens. Given: 900",
        "input (900 tokens) is too large to process. increase the physical batch size",
    ],
)
async def test_a_text_that_the_server_cannot_read_whole_has_the_mean_of_its_halves(
    encoder: HttpEncoder, server: ScriptedEncoder, words_of_refusal: str
) -> None:
    text = "alpha beta gamma omega"
    server.answers(refused(400, words_of_refusal))
    (vector,) = await encode(encoder, text)
    assert texts_of(server) == [[text], [text[:11]], [text[11:]]]
    halves = await TWIN.encode([text[:11], text[11:]], kind="document")
    mean = halves.sum(axis=0)
    assert np.allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)


async def test_only_the_long_text_of_many_is_halved(encoder: HttpEncoder, server: ScriptedEncoder) -> None:
    server.reads = lambda text: len(text) <= 30
    texts = ["short", words(10), "brief", "small"]
    vectors = await encoder.encode(texts, kind="document")
    expected = await TWIN.encode(texts, kind="document")
    assert np.allclose(vectors[[0, 2, 3]], expected[[0, 2, 3]], atol=1e-6)
    assert vectors[1] @ expected[1] > 0.9


async def test_a_server_that_finds_everything_too_long_is_not_asked_for_ever(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    server.reads = lambda text: False
    with pytest.raises(EncoderUnavailable, match=r"embedding\.window_tokens"):
        await encode(encoder, words(100))
    assert [len(texts[0]) for texts in texts_of(server)] == [399, 199, 99, 49]


async def test_of_a_text_without_end_as_much_is_sent_as_could_fit(
    encoder: HttpEncoder, server: ScriptedEncoder
) -> None:
    await encode(encoder, words(100_000))
    [[sent]] = texts_of(server)
    assert len(token_spans(sent)) == MOST_WINDOWS * encoder.max_tokens


# -------------------------------------------------------------------------------------------------------- settings


def settings_for(path: str, server: ScriptedEncoder, **changes: str) -> Settings:
    environment = {"EMBEDDING_MODEL": MODEL, "MODEL_GATEWAY_API_KEY": KEY, **changes}
    settings = load_settings(None, {"MODEL_GATEWAY_URL": server.url, **environment})
    if path == EMBEDDINGS:
        return settings
    return replaced(settings, backend="ollama")


def replaced(settings: Settings, **embedding: Any) -> Settings:
    return settings.model_copy(update={"embedding": settings.embedding.model_copy(update=embedding)})


@pytest.mark.parametrize("for_writer", [True, False])
async def test_the_settings_open_it_for_writers_and_replicas(
    path: str, server: ScriptedEncoder, for_writer: bool
) -> None:
    settings = replaced(settings_for(path, server), dimensions=32, window_tokens=300, document_prefix="d: ")
    async with open_encoder(settings, for_writer=for_writer) as encoder:
        assert (encoder.backend, encoder.model, encoder.dimension) == (
            "ollama" if path == EMBED else "gateway",
            MODEL,
            32,
        )
        assert encoder.max_tokens == 300 - len(token_spans("d: "))
        await encoder.encode(["a"], kind="document")
    assert server.asked[-1]["input"] == ["d: a"]


async def test_without_a_gateway_ollama_is_the_one_that_writes_answers_and_is_not_shown_the_gateways_key(
    server: ScriptedEncoder,
) -> None:
    server.api_key = None
    environment = {"EMBEDDING_MODEL": MODEL, "OLLAMA_BASE_URL": server.url, "MODEL_GATEWAY_API_KEY": KEY}
    async with open_encoder(replaced(load_settings(None, environment), backend="ollama"), for_writer=False) as encoder:
        assert encoder.backend == "ollama"
    assert server.requests
    assert all("authorization" not in request.headers for request in server.requests)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend": "gateway"}, "MODEL_GATEWAY_URL"),
        ({"backend": "ollama", "device": "cuda:0"}, "embedding.device"),
        ({"dimensions": 512}, "embedding.dimensions"),
    ],
)
async def test_settings_that_cannot_go_together_stop_the_start(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        async with open_encoder(replaced(Settings(), **changes), for_writer=True):
            pass


@pytest.mark.parametrize(
    "changed", [{"dimensions": 32}, {"window_tokens": 300}, {"document_prefix": "passage: "}], ids=str
)
async def test_a_collection_of_another_dimension_window_or_prefix_stops_the_start(
    path: str, server: ScriptedEncoder, changed: dict[str, Any]
) -> None:
    index = MemoryIndex()
    async with opened(path, server) as writer:
        await prepare_index(index, writer)
    async with opened(path, server) as replica:
        await prepare_index(index, replica)
    async with opened(path, server, **changed) as other:
        with pytest.raises(ConfigurationError, match="another model"):
            await prepare_index(index, other)


async def test_a_collection_of_another_model_under_the_same_name_stops_the_start(
    path: str, server: ScriptedEncoder
) -> None:
    index = MemoryIndex()
    async with opened(path, server) as writer:
        await prepare_index(index, writer)
    server.encoder = OtherModel()
    async with opened(path, server) as other:
        with pytest.raises(ConfigurationError, match="probe: cosine"):
            await prepare_index(index, other)


class OtherModel(MemoryEncoder):
    """Of the same shape."""

    async def encode(self, texts: Any, *, kind: Any) -> Any:
        return await super().encode([text[::-1] for text in texts], kind=kind)


# -------------------------------------------------------------------------------------------------------- estimate


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        (" \n\t", 0),
        ("a", 1),
        ("the", 1),
        ("approved", 3),
        ("2026", 4),
        ("get_user_id", 6),
        ("x = [1]", 5),
        ("Grüße", 4),
        ("发票", 4),
        ("😀", 3),
    ],
)
def test_a_token_is_three_letters_a_character_or_less(text: str, tokens: int) -> None:
    assert len(token_spans(text)) == tokens


def test_the_estimate_of_code_is_above_a_real_count() -> None:
    from tokenizers import BertWordPieceTokenizer

    from dats_common.adapters.encoder_openvino.encoder import VOCABULARY

    real = BertWordPieceTokenizer(str(VOCABULARY), lowercase=True)
    for module in (json, asyncio, traceback):
        with open(module.__file__, encoding="utf-8") as file:
            text = file.read()
        assert len(token_spans(text)) >= len(real.encode(text, add_special_tokens=False).ids)
