"""An answer sentence by sentence: what each cites, and whether that supports it. Pure. Source: spec 5, axiom A2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dats_common.domain.citations import Issued, Resolved, resolve, strip_markers
from dats_common.domain.grounding import Grounding, Opinions, Pair
from dats_common.domain.prompt import INSUFFICIENT
from dats_common.domain.sentences import sentences

NO_OPINIONS = Opinions()


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence that says something: `text == answer[start:end]`.

    Attributes:
        source_ids: what it cites itself.
        supported: it cites something, and that supports it.
        score: how well, in [0, 1]; 0 for one that cites nothing.
        pair: what was judged: the words without markers, and the texts of what it cites.
    """

    text: str
    start: int
    end: int
    source_ids: tuple[str, ...]
    supported: bool
    score: float
    pair: Pair


def judge_claims(
    answer: Resolved,
    texts: Mapping[str, str],
    opinions: Opinions = NO_OPINIONS,
    *,
    grounding: Grounding | None = None,
) -> tuple[Claim, ...]:
    """The claims of an answer, in its order. What has no word claims nothing, nor does saying that one cannot answer.

    Args:
        texts: of the prompt's sources by their ids.
        opinions: of scorers that were asked about its claims.
        grounding: the one that read this answer before, where there is one.
    """
    grounding = grounding or Grounding()
    claims = []
    for start, end in sentences(answer.text):
        said = strip_markers(answer.text[start:end]).strip()
        if said == INSUFFICIENT or not any(map(str.isalnum, said)):
            continue
        cited = tuple(dict.fromkeys(span.source_id for span in answer.spans if start <= span.start < end))
        pair = Pair(said, tuple(texts[source_id] for source_id in cited))
        support = grounding.support(pair, opinions) if cited else None
        claims.append(
            Claim(
                text=answer.text[start:end],
                start=start,
                end=end,
                source_ids=cited,
                supported=support is not None and support.supported,
                score=support.score if support else 0.0,
                pair=pair,
            )
        )
    return tuple(claims)


def only_supported(
    answer: Resolved,
    claims: tuple[Claim, ...],
    texts: Mapping[str, str],
    issued: Issued,
    opinions: Opinions = NO_OPINIONS,
    *,
    grounding: Grounding | None = None,
) -> tuple[Resolved, tuple[Claim, ...]]:
    """The answer without the claims that are not supported, and what is left of them.

    What stood apart may read as one sentence once what was between is gone: it is judged anew, and without an opinion
    where none was asked for it.
    """
    while not all(claim.supported for claim in claims):
        kept = answer.text
        for claim in reversed(claims):
            if not claim.supported:
                kept = kept[: claim.start] + kept[claim.end :]
        left = resolve(kept.strip(), issued)
        answer = replace(left, refused=answer.refused + left.refused)
        claims = judge_claims(answer, texts, opinions, grounding=grounding)
    return answer, claims
