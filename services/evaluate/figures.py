"""What scores and rankings are worth against what was true. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BINS = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Answers of about the same confidence.

    Attributes:
        predicted: their mean confidence, in [0, 1].
        right: the share of them that was right.
    """

    predicted: float
    right: float
    count: int


def auroc(positive: Sequence[float], negative: Sequence[float]) -> float:
    """The chance that a positive one scores above a negative one; ties count half. NaN where either is missing.

    Source: the Mann-Whitney U statistic over the product of the counts.
    """
    if not positive or not negative:
        return math.nan
    ranked = sorted([(score, True) for score in positive] + [(score, False) for score in negative])
    wins = below = 0.0
    start = 0
    while start < len(ranked):
        end = start
        while end < len(ranked) and ranked[end][0] == ranked[start][0]:
            end += 1
        tied = [is_positive for _, is_positive in ranked[start:end]]
        wins += sum(tied) * (below + 0.5 * (len(tied) - sum(tied)))
        below += len(tied) - sum(tied)
        start = end
    return wins / (len(positive) * len(negative))


def brier(predicted: Sequence[float], right: Sequence[bool]) -> float:
    """Mean squared distance of confidence and truth. Source: Brier, Monthly Weather Review 1950."""
    return sum((p - r) ** 2 for p, r in zip(predicted, right, strict=True)) / len(predicted) if predicted else math.nan


def reliability(predicted: Sequence[float], right: Sequence[bool]) -> list[Bin]:
    """Answers in ten steps of confidence, those without any left out."""
    found = []
    for step in range(BINS):
        members = [(p, r) for p, r in zip(predicted, right, strict=True) if min(int(p * BINS), BINS - 1) == step]
        if members:
            count = len(members)
            found.append(Bin(sum(p for p, _ in members) / count, sum(r for _, r in members) / count, count))
    return found


def calibration_error(bins: Sequence[Bin]) -> float:
    """Expected calibration error: the mean distance of confidence and truth over the bins, weighed by their size.

    Source: Naeini et al., AAAI 2015.
    """
    total = sum(each.count for each in bins)
    return sum(each.count * abs(each.predicted - each.right) for each in bins) / total if total else math.nan


# ------------------------------------------------------------------------------------------------------------ ranking


def recall_at(ranked: Sequence[str], relevant: Mapping[str, float], *, depth: int) -> float:
    """The share of the relevant documents that are among the first `depth`. NaN where nothing is relevant.

    Args:
        ranked: document ids, the best first, each once.
        relevant: gain by document id; 0 means judged and not relevant.
    """
    wanted = {document for document, gain in relevant.items() if gain > 0}
    return len(wanted.intersection(ranked[:depth])) / len(wanted) if wanted else math.nan


def ndcg_at(ranked: Sequence[str], relevant: Mapping[str, float], *, depth: int) -> float:
    """Normalised discounted cumulative gain; 1 is the best order there can be, NaN where nothing is relevant.

    Gains count as they are (linear), as trec_eval has it. Arguments as for `recall_at`.

    Source: Jarvelin and Kekalainen, ACM TOIS 2002, with log2(rank + 1) as the discount.
    """
    best = _discounted(sorted(relevant.values(), reverse=True)[:depth])
    return _discounted([relevant.get(document, 0.0) for document in ranked[:depth]]) / best if best else math.nan


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def reciprocal_rank(ranked: Sequence[str], relevant: Mapping[str, float], *, depth: int) -> float:
    """1 / rank of the first relevant document, 0 if none is among the first `depth`. Arguments as for `recall_at`."""
    for rank, document in enumerate(ranked[:depth], start=1):
        if relevant.get(document, 0.0) > 0:
            return 1 / rank
    return 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at least `share` of all do not exceed (nearest rank). NaN of nothing."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else math.nan
