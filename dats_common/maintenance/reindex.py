"""Rebuilding the index from the ledger, without replaying a single event.

The generations stay the same, so the ledger changes nothing and a running fleet goes on serving: what is not rebuilt
yet is merely not proposed, and what a taint takes away meanwhile stays invisible whatever is written here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from dats_common.domain import sparse
from dats_common.domain.model import ArtifactKey, Chunk, ChunkRef, Generation
from dats_common.errors import ConfigurationError
from dats_common.fingerprint import fingerprint
from dats_common.ports import Encoder, Index, Ledger
from dats_common.records import Point

_CHUNKS_PER_STEP = 128  # encoded and stored together; also the grain of the progress that is reported
_SPECIAL_TOKENS = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild has come."""

    artifacts: int
    chunks: int
    last: ArtifactKey


async def reindex(
    *,
    ledger: Ledger,
    index: Index,
    encoder: Encoder,
    recreate: bool = False,
    after: ArtifactKey | None = None,
    report: Callable[[Progress], Awaitable[None]] | None = None,
) -> Progress | None:
    """Write the points of every live chunk. Repeating it, or resuming it `after` an artifact, is harmless.

    Args:
        recreate: drop the collection first: needed when it was written by another model.
        report: called after each step.

    Returns:
        The last progress, or None when nothing is live.

    Raises:
        ConfigurationError: the collection is another model's and `recreate` was not asked for, or the model's window
            is smaller than a stored chunk.
    """
    if recreate:
        await index.drop()
    await index.prepare(await fingerprint(encoder))
    progress: Progress | None = None
    waiting: list[tuple[Generation, Chunk]] = []
    artifacts = chunks = 0
    async for generation, parts in ledger.live_chunks(after=after):
        artifacts += 1
        waiting += [(generation, part) for part in parts]
        if len(waiting) >= _CHUNKS_PER_STEP:
            chunks += await _store(waiting, index=index, encoder=encoder)
            waiting = []
            progress = Progress(artifacts, chunks, generation.key)
            if report is not None:
                await report(progress)
        last = generation.key
    if waiting:
        chunks += await _store(waiting, index=index, encoder=encoder)
    if artifacts:
        progress = Progress(artifacts, chunks, last)
        if report is not None:
            await report(progress)
    return progress


async def _store(parts: Sequence[tuple[Generation, Chunk]], *, index: Index, encoder: Encoder) -> int:
    longest = max(chunk.token_count for _, chunk in parts)
    if longest > encoder.max_tokens - _SPECIAL_TOKENS:
        raise ConfigurationError(
            f"a stored chunk has {longest} tokens, but {encoder.model} reads {encoder.max_tokens - _SPECIAL_TOKENS}: "
            "publish the sources again, so that they are cut for this model"
        )
    for start in range(0, len(parts), _CHUNKS_PER_STEP):
        step = parts[start : start + _CHUNKS_PER_STEP]
        vectors = await encoder.encode([chunk.text for _, chunk in step], kind="document")
        await index.store(
            [
                Point(
                    ref=ChunkRef(generation.key, generation.number, chunk.index),
                    metadata=generation.metadata,
                    dense=vector,
                    sparse=sparse.encode_document(sparse.keyword_text(chunk.text, title=generation.metadata.title)),
                )
                for (generation, chunk), vector in zip(step, vectors, strict=True)
            ]
        )
    return len(parts)
