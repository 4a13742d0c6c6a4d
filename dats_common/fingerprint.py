"""Whether two processes speak of the same vectors: the writer's model, asked again by every reader.

A name alone proves nothing (a fine-tuned copy keeps it), so the model's answers to three short texts are compared.
"""

from __future__ import annotations

import math

from dats_common.domain import sparse
from dats_common.ports import Encoder
from dats_common.records import Fingerprint

PROBE_TEXTS = (
    "The invoice was approved by the finance team on Tuesday.",
    "def get_user_id(session: Session) -> int: return session.user.id",
    "Why does the connection pool time out under load?",
)

LEAST_COSINE = 0.998
"""Two backends of one model agree above this.

Source: all-MiniLM-L6-v2, these texts: int8 weights against fp32 .9995, and the least of 200 docstrings of the standard
library .9990 (tests/ports/test_encoder.py); a fine-tuned copy is far below.
"""


async def fingerprint(encoder: Encoder) -> Fingerprint:
    """What `encoder` would have to agree with. Raises: EncoderUnavailable."""
    vectors = await encoder.encode(PROBE_TEXTS, kind="document")
    return Fingerprint(
        model=encoder.model,
        dimension=encoder.dimension,
        max_tokens=encoder.max_tokens,
        sparse_version=sparse.VERSION,
        probe=tuple(tuple(float(value) for value in vector) for vector in vectors),
    )


def agree(written: Fingerprint, asked: Fingerprint) -> list[str]:
    """The differences that forbid reading what `written` stored with what `asked` encodes; empty when they agree."""
    differences = [
        f"{name}: written {was!r}, now {now!r}"
        for name, was, now in (
            ("model", written.model, asked.model),
            ("dimension", written.dimension, asked.dimension),
            ("max_tokens", written.max_tokens, asked.max_tokens),
            ("sparse_version", written.sparse_version, asked.sparse_version),
            ("probe texts", len(written.probe), len(asked.probe)),
        )
        if was != now
    ]
    if differences:
        return differences
    cosines = map(_cosine, written.probe, asked.probe)
    # "not >=" rather than "<": a NaN must disagree.
    return [f"probe: cosine {each:.4f}, below {LEAST_COSINE}" for each in cosines if not each >= LEAST_COSINE]


def _cosine(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    norms = math.hypot(*one) * math.hypot(*other)
    return sum(map(float.__mul__, one, other)) / norms if norms else 0.0
