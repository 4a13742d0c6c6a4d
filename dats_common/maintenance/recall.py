"""Telling the world which answers stood on what is withdrawn now. The promise does not wait for it: an answer is judged
at each read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from dats_common.domain.model import ArtifactKey
from dats_common.ports import Evidence

_AT_ONCE = 500


async def recalled(
    evidence: Evidence, keys: Sequence[ArtifactKey] | None = None, *, cascade_id: str | None = None
) -> AsyncIterator[int]:
    """Queue `answer.recalled` for every answer that stood on these artifacts, or on any: how many, part by part.

    Raises: LedgerUnavailable: some may be left; they are found by the next call.
    """
    while True:
        part = await evidence.recall(keys, cascade_id=cascade_id, limit=_AT_ONCE)
        yield part
        if part < _AT_ONCE:
            return
