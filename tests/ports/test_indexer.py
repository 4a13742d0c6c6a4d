"""One contract for both indexers, and what must stay true of LightRAG for ours to work."""

import asyncio
import gc
import logging
import subprocess
import sys
import tracemalloc
from contextlib import asynccontextmanager

import pytest

from dats_common.adapters.lightrag import open_lightrag_indexer
from dats_common.adapters.memory_encoder import MemoryEncoder
from dats_common.adapters.memory_indexer import MemoryIndexer
from dats_common.domain import sparse
from dats_common.domain.model import ArtifactKey, ChunkRef, Generation, Scope, SourceMetadata
from dats_common.errors import EncoderUnavailable, IndexUnavailable, InvalidInput
from dats_common.records import IndexJob

POISON = "poison"


class CountingEncoder(MemoryEncoder):
    """Counts its calls; can be away."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.away = False
        self.unreadable = None

    def token_spans(self, text):
        if self.unreadable is not None and self.unreadable in text:
            raise InvalidInput("unreadable")
        return super().token_spans(text)

    async def encode(self, texts, *, kind):
        self.calls += 1
        if self.away:
            raise EncoderUnavailable("away")
        assert kind == "document"
        return await super().encode(texts, kind=kind)


class RecordingIndex:
    """Keeps points by id; refuses those of a poisoned project."""

    def __init__(self):
        self.points = {}
        self.calls = 0
        self.away = False

    async def store(self, points):
        self.calls += 1
        if self.away:
            raise IndexUnavailable("away")
        if any(point.metadata.project_id == POISON for point in points):
            raise InvalidInput("a vector of the wrong length")
        self.points.update({point.ref.point_id: point for point in points})


class RecordingLedger:
    """Keeps chunk rows by generation."""

    def __init__(self):
        self.rows = {}
        self.models = set()

    async def write_chunks(self, documents, *, embedding_model):
        self.rows.update({generation: list(chunks) for generation, chunks in documents.items()})
        self.models.add(embedding_model)


@asynccontextmanager
async def open_memory_indexer(**ports):
    yield MemoryIndexer(**ports)


OPENERS = {"memory": open_memory_indexer, "lightrag": open_lightrag_indexer}


class Bench:
    def __init__(self, indexer, encoder, index, ledger):
        self.indexer, self.encoder, self.index, self.ledger = indexer, encoder, index, ledger

    def chunks(self, number):
        (rows,) = (rows for generation, rows in self.ledger.rows.items() if generation.number == number)
        return rows


@pytest.fixture(params=OPENERS)
async def bench(request):
    encoder, index, ledger = CountingEncoder(), RecordingIndex(), RecordingLedger()
    async with OPENERS[request.param](encoder=encoder, index=index, ledger=ledger) as indexer:
        yield Bench(indexer, encoder, index, ledger)


def job(number, content, *, tenant="acme", project="apollo", **metadata):
    key = ArtifactKey(tenant, f"artifact-{number}")
    return IndexJob(Generation(number, key, 1, SourceMetadata(project, **metadata)), content)


def prose(paragraphs, start=0):
    return "\n\n".join(f"Paragraph {n} tells of topic{n} and of much else besides, in a few words. " * 8
                       for n in range(start, start + paragraphs))  # fmt: skip


async def test_a_document_is_cut_by_the_profile_of_its_metadata(bench):
    words = "some words that fill the section " * 60
    guide = job(1, f"# Guide\n\n{words}\n\n## Use\n\n{words}", source_uri="docs/guide.md")
    page = job(
        2, f"<h1 id=top>Page</h1><p>{words}</p><h2 id=use>Use</h2><p>{words}</p>", source_uri="http://h/page.html"
    )
    outcomes = await bench.indexer.index([guide, page])
    assert outcomes == {1: len(bench.chunks(1)), 2: len(bench.chunks(2))}
    for number in (1, 2):
        assert {each.location.heading_path[-1] for each in bench.chunks(number)} >= {"Use"}
    assert {each.location.anchor for each in bench.chunks(2)} == {"top", "use"}
    assert bench.chunks(2)[0].text.startswith("Page")


async def test_chunks_in_the_ledger_are_slices_of_the_original_that_cover_it(bench):
    content = f"\ufeff \0\n  {prose(12)}\r\n\ud800 naïve — 語 \x1b[0m <|endoftext|>  \n\n"
    assert await bench.indexer.index([job(1, content)]) == {1: len(bench.chunks(1))}
    chunks = bench.chunks(1)
    assert len(chunks) > 5
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    covered = set()
    for chunk in chunks:
        assert chunk.text == content[chunk.char_start : chunk.char_end]
        assert chunk.token_count <= bench.encoder.max_tokens - 2
        covered.update(range(chunk.char_start, chunk.char_end))
    assert all(letter.isspace() or position in covered for position, letter in enumerate(content))


async def test_points_carry_ids_metadata_and_both_vectors_of_their_chunk(bench):
    only = job(7, prose(6), tenant="acme", tags=("red", "blue"), scope=Scope.USER, user_id="ann", doc_type="md")
    await bench.indexer.index([only])
    chunks = bench.chunks(7)
    vectors = await bench.encoder.encode([chunk.text for chunk in chunks], kind="document")
    assert len(bench.index.points) == len(chunks)
    for chunk, vector in zip(chunks, vectors, strict=True):
        ref = ChunkRef(only.generation.key, 7, chunk.index)
        point = bench.index.points[ref.point_id]
        assert point.ref == ref
        assert point.metadata == only.generation.metadata
        assert point.dense.tolist() == vector.tolist()
        assert point.sparse == sparse.encode_document(chunk.text)
        assert point.sparse.indices
    assert bench.ledger.models == {bench.encoder.model}


async def test_every_chunk_is_found_by_the_words_of_its_title_and_none_is_embedded_with_them(bench):
    named, unnamed = job(1, prose(6), title="Reimbursement of travel"), job(2, prose(6))
    await bench.indexer.index([named, unnamed])
    words = sparse.term_ids("reimbursement travel")
    of_named = [point for point in bench.index.points.values() if point.ref.generation == 1]
    of_unnamed = [point for point in bench.index.points.values() if point.ref.generation == 2]
    assert len(of_named) == len(of_unnamed) > 1
    assert all(words <= set(point.sparse.indices) for point in of_named)
    assert not any(words & set(point.sparse.indices) for point in of_unnamed)
    vectors = {point.ref.chunk_index: point.dense.tolist() for point in of_unnamed}
    assert all(point.dense.tolist() == vectors[point.ref.chunk_index] for point in of_named)


async def test_a_bad_document_fails_alone(bench):
    jobs = [job(1, prose(3)), job(2, prose(3), project=POISON), job(3, " \n\t"), job(4, prose(3))]
    outcomes = await bench.indexer.index(jobs)
    assert isinstance(outcomes[2], InvalidInput)
    assert outcomes[3] == 0
    assert outcomes[1] == len(bench.chunks(1)) == outcomes[4] == len(bench.chunks(4)) > 0
    stored = {point.ref.generation for point in bench.index.points.values()}
    assert stored == {1, 4}


async def test_a_document_that_cannot_be_cut_fails_alone(bench):
    bench.encoder.unreadable = POISON
    outcomes = await bench.indexer.index([job(1, "good text"), job(2, POISON), job(3, "more good text")])
    assert isinstance(outcomes.pop(2), InvalidInput)
    assert outcomes == {1: 1, 3: 1}


@pytest.mark.parametrize("part", ["encoder", "index"])
async def test_what_is_away_fails_every_document_and_the_next_batch_succeeds(bench, part):
    jobs = [job(number, prose(1)) for number in range(1, 9)]
    getattr(bench, part).away = True
    outcomes = await bench.indexer.index(jobs)
    assert all(isinstance(outcome, EncoderUnavailable | IndexUnavailable) for outcome in outcomes.values())
    assert len(outcomes) == 8
    getattr(bench, part).away = False
    assert set((await bench.indexer.index(jobs)).values()) == {1}


async def test_the_same_content_in_two_tenants_is_indexed_twice(bench):
    jobs = [job(1, "shared words", tenant="acme"), job(2, "shared words", tenant="umbrella")]
    assert await bench.indexer.index(jobs) == {1: 1, 2: 1}
    assert {point.ref.key.tenant_id for point in bench.index.points.values()} == {"acme", "umbrella"}


async def test_two_generations_of_one_artifact_go_through_together(bench):
    first, second = job(1, "old words"), job(2, "new words")
    second = IndexJob(Generation(2, first.generation.key, 2, first.generation.metadata), second.content)
    assert await bench.indexer.index([first, second]) == {1: 1, 2: 1}
    assert bench.chunks(2)[0].text == "new words"


async def test_the_same_generation_indexed_twice_leaves_one_set_of_points(bench):
    only = job(1, prose(4))
    once = await bench.indexer.index([only, only])
    points = set(bench.index.points)
    assert await bench.indexer.index([only]) == once
    assert set(bench.index.points) == points
    assert len(points) == once[1]


async def test_more_documents_than_a_micro_batch_are_all_indexed(bench):
    outcomes = await bench.indexer.index([job(number, f"document {number}") for number in range(100)])
    assert outcomes == dict.fromkeys(range(100), 1)


async def test_no_documents_are_no_work(bench):
    assert await bench.indexer.index([]) == {}


async def test_a_batch_leaves_nothing_in_memory(bench):
    jobs = [job(number, prose(20, start=number)) for number in range(8)]

    async def run():
        await bench.indexer.index(jobs)
        bench.index.points.clear()
        bench.ledger.rows.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    sparse._terms_of.cache_clear()
    await run()
    tracemalloc.start()
    try:
        before = await run()
        for _ in range(3):
            after = await run()
    finally:
        tracemalloc.stop()
    # Bytes. Three batches kept would be 330,000 of chunk texts alone; LightRAG's bounded history moves by some 60,000.
    assert after - before < 150_000


@pytest.fixture
async def lightrag():
    encoder, index, ledger = CountingEncoder(), RecordingIndex(), RecordingLedger()
    async with open_lightrag_indexer(encoder=encoder, index=index, ledger=ledger) as indexer:
        yield Bench(indexer, encoder, index, ledger)


async def test_documents_in_flight_share_the_encoders_calls(lightrag):
    outcomes = await lightrag.indexer.index([job(number, prose(4)) for number in range(40)])
    chunks = sum(outcomes.values())
    assert chunks > 100
    assert lightrag.encoder.calls <= chunks / 20


async def test_lightrag_says_nothing(lightrag, capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        await lightrag.indexer.index([job(1, "secret words"), job(2, "secret words", project=POISON)])
    out, err = capfd.readouterr()
    assert "lightrag" not in caplog.text.lower()
    assert out == err == ""
    assert "secret" not in caplog.text


async def test_a_batch_that_takes_too_long_is_given_up_and_the_next_one_works():
    class Stuck(RecordingIndex):
        stuck = True

        async def store(self, points):
            if self.stuck:
                await asyncio.Event().wait()
            await super().store(points)

    index = Stuck()
    async with open_lightrag_indexer(
        encoder=MemoryEncoder(), index=index, ledger=RecordingLedger(), timeout_s=0.5
    ) as indexer:
        outcomes = await indexer.index([job(1, "some words")])
        assert isinstance(outcomes[1], IndexUnavailable)
        index.stuck = False
        assert await indexer.index([job(1, "some words")]) == {1: 1}


async def test_an_indexer_that_is_given_up_leaves_another_one_at_work():
    class Gate(RecordingIndex):
        def __init__(self):
            super().__init__()
            self.entered, self.opened = asyncio.Event(), asyncio.Event()

        async def store(self, points):
            self.entered.set()
            await self.opened.wait()
            await super().store(points)

    stuck, slow = Gate(), Gate()
    async with (
        open_lightrag_indexer(
            encoder=MemoryEncoder(), index=stuck, ledger=RecordingLedger(), timeout_s=0.5
        ) as given_up,
        open_lightrag_indexer(encoder=MemoryEncoder(), index=slow, ledger=RecordingLedger()) as other,
    ):
        working = asyncio.create_task(other.index([job(1, prose(3))]), name="other")
        await slow.entered.wait()
        failed = await given_up.index([job(2, prose(3))])
        slow.opened.set()
        assert isinstance(failed[2], IndexUnavailable)
        assert (await working)[1] == len(slow.points) > 0
        assert (await other.index([job(3, prose(3))]))[3] > 0


def test_lightrag_is_loaded_only_when_opened_and_reads_no_env_file(tmp_path):
    (tmp_path / ".env").write_text("ENTITY_TYPES=[]\nLEAKED=yes\n")
    program = """
import asyncio, os, sys
from dats_common.adapters.lightrag import open_lightrag_indexer
from dats_common.adapters.memory_encoder import MemoryEncoder
assert not any(name == "lightrag" or name.startswith("lightrag.") for name in sys.modules)
before = dict(os.environ)
async def main():
    async with open_lightrag_indexer(encoder=MemoryEncoder(), index=None, ledger=None):
        assert "lightrag" in sys.modules
asyncio.run(main())
assert dict(os.environ) == before, set(os.environ) ^ set(before)
assert os.listdir() == [".env"], os.listdir()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_lightrags_registration_is_as_we_know_it():
    """Not a documented interface: read its release notes before changing this test, then storages.py."""
    from importlib.metadata import version

    from lightrag import kg
    from lightrag.kg.factory import get_storage_class

    from dats_common.adapters.lightrag import storages

    assert version("lightrag-hku") == "1.5.7"
    assert set(kg.STORAGE_IMPLEMENTATIONS) == {"KV_STORAGE", "GRAPH_STORAGE", "VECTOR_STORAGE", "DOC_STATUS_STORAGE"}
    assert all(isinstance(kind["implementations"], list) for kind in kg.STORAGE_IMPLEMENTATIONS.values())
    assert kg.STORAGE_ENV_REQUIREMENTS["JsonKVStorage"] == []
    assert kg.STORAGES["JsonKVStorage"] == ".kg.json_kv_impl"
    storages.register()
    for kind, cls in storages.KINDS.items():
        kg.verify_storage_implementation(kind, cls.__name__)
        assert get_storage_class(cls.__name__) is cls
