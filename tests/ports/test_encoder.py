"""One contract for every encoder, and what the two backends of the default model owe each other.

Those over HTTP ask a server on a real socket, whose vectors are the default model's, and the facade with a real model.
"""

import asyncio
import importlib
import inspect
import time
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest
from facade import MODEL as FACADE_MODEL
from facade import small_facade
from scripted_encoder import MODEL as SCRIPTED_MODEL
from scripted_encoder import open_scripted_encoder

from dats_common.adapters.encoder_http import Remote, open_gateway_encoder, open_ollama_encoder
from dats_common.adapters.encoder_openvino import open_openvino_encoder
from dats_common.adapters.encoder_st import open_sentence_transformers_encoder
from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.domain.chunking import Chunker
from dats_common.domain.model import SourceMetadata
from dats_common.errors import ConfigurationError, EncoderUnavailable
from dats_common.fingerprint import LEAST_COSINE, agree, fingerprint

TEXTS = [
    "The invoice was approved on Tuesday.",
    "",
    "def get_user_id(session): return session.user.id",
    "Grüße aus Zürich, 你好 😀",
    "word " * 3000,
    "\0 null \ud800 surrogate \u200b",
    "short",
]


@asynccontextmanager
async def open_memory_encoder():
    yield MemoryEncoder()


@asynccontextmanager
async def open_over_ollama():
    """As Ollama does when told not to truncate, the server refuses what its model cannot read."""
    async with open_openvino_encoder() as model, open_scripted_encoder(model) as server:
        server.reads = lambda text: len(model.token_spans(text)) <= model.max_tokens - 2
        remote = Remote(SCRIPTED_MODEL, window_tokens=model.max_tokens)
        async with open_ollama_encoder(server.url, remote) as opened:
            yield opened


@asynccontextmanager
async def open_over_a_gateway():
    """As many do, the server reads as much of a text as its model can, and says nothing."""
    async with open_openvino_encoder() as model, open_scripted_encoder(model) as server:
        remote = Remote(SCRIPTED_MODEL, window_tokens=model.max_tokens)
        async with open_gateway_encoder(server.url, remote) as opened:
            yield opened


@asynccontextmanager
async def open_over_the_facade():
    async with (
        small_facade() as facade,
        open_ollama_encoder(facade.base_url, Remote(FACADE_MODEL, window_tokens=128)) as opened,
    ):
        yield opened


OPENERS = {
    "memory": open_memory_encoder,
    "openvino": open_openvino_encoder,
    "openvino-int8": partial(open_openvino_encoder, precision="int8"),
    "sentence-transformers": open_sentence_transformers_encoder,
    "ollama": open_over_ollama,
    "gateway": open_over_a_gateway,
}
QUEUED = [open_openvino_encoder, open_sentence_transformers_encoder, open_over_ollama, open_over_a_gateway]


@pytest.fixture(params=[*OPENERS, "facade"])
async def encoder(request):
    if request.param == "facade":
        request.getfixturevalue("model_file")  # or there is nothing to run
    async with OPENERS.get(request.param, open_over_the_facade)() as opened:
        yield opened


def docstrings(least):
    """Real, varied texts that every machine has."""
    found = []
    for name in ("argparse", "asyncio", "collections", "csv", "email.message", "http.client", "inspect", "json",
                 "logging", "os", "pathlib", "random", "re", "sched", "shutil", "socket", "statistics", "string",
                 "subprocess", "tarfile", "textwrap", "threading", "unittest", "zipfile"):  # fmt: skip
        module = importlib.import_module(name)
        for _, member in sorted(
            inspect.getmembers(module, lambda each: inspect.isclass(each) or inspect.isroutine(each))
        ):
            text = inspect.getdoc(member)
            if text and len(text) > 40 and text not in found:
                found.append(text)
    assert len(found) >= least
    return found[:: len(found) // least][:least]


async def test_vectors_are_unit_length_float32_in_the_order_of_the_texts(encoder):
    vectors = await encoder.encode(TEXTS, kind="document")
    assert vectors.shape == (len(TEXTS), encoder.dimension)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    back = await encoder.encode(TEXTS[::-1], kind="document")
    assert np.allclose(vectors, back[::-1], atol=1e-5)


async def test_no_texts_give_no_vectors(encoder):
    assert (await encoder.encode([], kind="query")).shape == (0, encoder.dimension)


async def test_a_texts_vector_does_not_depend_on_its_company(encoder):
    together = await encoder.encode(TEXTS * 3, kind="document")
    for text, vector in zip(TEXTS, together, strict=False):
        alone = (await encoder.encode([text], kind="document"))[0]
        assert np.allclose(alone, vector, atol=1e-5)


async def test_near_texts_are_nearer_than_far_ones(encoder):
    query, near, far = await encoder.encode(
        ["how to close a file", "close the file after reading it", "penguins live in cold seas"], kind="document"
    )
    assert query @ near > query @ far


async def test_a_text_beyond_the_window_counts_only_up_to_it(encoder):
    start = "alpha beta " * 400
    one, other = await encoder.encode([start + "gamma", start + "completely different end"], kind="document")
    assert np.allclose(one, other, atol=1e-6)


async def test_a_query_of_this_model_is_encoded_like_a_document(encoder):
    query = await encoder.encode(TEXTS[:1], kind="query")
    document = await encoder.encode(TEXTS[:1], kind="document")
    assert np.allclose(query, document, atol=1e-5)


@pytest.mark.parametrize("text", [*TEXTS, "Ünïcödé naïve cafe\u0301 \ud800 end"])
async def test_token_spans_are_offsets_into_the_original_text(encoder, text):
    await encoder.encode(["encoding must not change the tokenizer's settings"], kind="document")
    spans = encoder.token_spans(text)
    assert spans == sorted(spans)
    assert all(0 <= start < end <= len(text) for start, end in spans)
    marked = {position for start, end in spans for position in range(start, end)}
    assert {position for position, letter in enumerate(text) if letter.isascii() and letter.isalnum()} <= marked


async def test_chunks_of_real_text_fit_the_window_when_tokenized_again(encoder):
    text = inspect.getsource(argparse := importlib.import_module("argparse"))
    assert argparse.__name__ in text
    most = encoder.max_tokens - 2
    chunks = Chunker(encoder.token_spans, most, max_tokens=most).cut(text, SourceMetadata("p"))
    assert len(chunks) > 50
    assert all(len(encoder.token_spans(each.text)) == each.token_count <= most for each in chunks)


@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
async def test_the_event_loop_ticks_while_texts_are_encoded(opener):
    ticks = []

    async def tick():
        while True:
            ticks.append(time.perf_counter())
            await asyncio.sleep(0.005)

    async with opener() as encoder:
        ticks.append(time.perf_counter())
        ticker = asyncio.create_task(tick())
        try:
            await encoder.encode(docstrings(60), kind="document")
            ticks.append(time.perf_counter())
        finally:
            ticker.cancel()
    assert max(np.diff(ticks)) < 0.25


@pytest.mark.parametrize("opener", QUEUED)
async def test_a_query_does_not_wait_behind_a_large_batch_of_documents(opener):
    async with opener() as encoder:
        batch = asyncio.create_task(encoder.encode(docstrings(200), kind="document"))
        await asyncio.sleep(0)
        await encoder.encode(["which comes first?"], kind="query")
        assert not batch.done()
        await batch


@pytest.mark.parametrize("opener", QUEUED)
async def test_a_closed_encoder_says_that_it_is_unavailable(opener):
    async with opener() as encoder:
        pass
    with pytest.raises(EncoderUnavailable):
        await encoder.encode(["late"], kind="document")


@pytest.mark.parametrize("opener", [open_openvino_encoder, open_sentence_transformers_encoder])
async def test_a_text_that_takes_too_long_is_given_up(opener):
    async with opener(timeout_s=0.0005) as encoder:
        with pytest.raises(EncoderUnavailable):
            await encoder.encode(["word " * 2000], kind="document")


async def test_a_promised_device_that_is_missing_stops_the_start():
    with pytest.raises(ConfigurationError, match="cuda:97"):
        async with open_sentence_transformers_encoder(device="cuda:97"):
            pass


async def test_a_missing_model_stops_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match="nowhere"):
        async with open_sentence_transformers_encoder(str(tmp_path / "nowhere")):
            pass


async def test_openvino_gives_the_very_same_bits_alone_and_in_company():
    texts = docstrings(40)
    async with open_openvino_encoder(threads=2) as two, open_openvino_encoder(threads=1) as one:
        together = await two.encode(texts, kind="document")
        alone = [(await one.encode([text], kind="query"))[0] for text in texts]
    assert np.array_equal(together, np.stack(alone))


@pytest.mark.parametrize(
    ("precision", "least_cosine", "shared_of_ten"), [("fp32", 0.9999, 0.98), ("int8", LEAST_COSINE, 0.95)]
)
async def test_both_backends_of_the_default_model_agree(precision, least_cosine, shared_of_ten):
    texts = docstrings(200)
    async with (
        open_openvino_encoder(precision=precision) as quick,
        open_sentence_transformers_encoder() as exact,
    ):
        assert agree(await fingerprint(quick), await fingerprint(exact)) == []
        ours = await quick.encode(texts, kind="document")
        theirs = await exact.encode(texts, kind="document")
    assert (ours * theirs).sum(axis=1).min() >= least_cosine
    rankings = [np.argsort(-(vectors[:50] @ vectors[50:].T), axis=1)[:, :10] for vectors in (ours, theirs)]
    shared = [len(set(one) & set(other)) / 10 for one, other in zip(*rankings, strict=True)]
    assert np.mean(shared) > shared_of_ten
    assert np.mean(rankings[0][:, 0] == rankings[1][:, 0]) > 0.9


async def test_full_precision_is_chosen_where_its_weights_are_installed():
    async with open_openvino_encoder() as encoder:
        assert encoder.backend == "openvino:cpu:fp32"


async def test_another_model_does_not_agree():
    async with open_openvino_encoder() as encoder:
        ours = await fingerprint(encoder)
    theirs = await fingerprint(MemoryEncoder(dimension=ours.dimension))
    assert any("model" in difference for difference in agree(ours, theirs))
