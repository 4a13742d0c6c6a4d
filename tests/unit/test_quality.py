"""Which retrieved chunks an answer is made from. Names of spec 2's tests are kept."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.quality import QualityRules, jaccard, limit_per_document, select, without_duplicates


@dataclass(frozen=True)
class Found:
    similarity: float
    document_id: str
    text: str


def found(*, count: int, document: str = "{}", similarity: float = 0.8) -> list[Found]:
    """Chunks that share no word."""
    return [Found(similarity, document.format(number), f"alpha{number} beta{number}") for number in range(count)]


def test_deduplicate_chunks() -> None:
    words = " ".join(f"word{number}" for number in range(40))
    first, copy, close, other = (
        Found(0.9, "a", words),
        Found(0.8, "b", words.upper()),
        Found(0.7, "c", f"{words} one"),
        Found(0.6, "d", f"{words} one two three four five six"),
    )
    assert without_duplicates([first, copy, close, other], above=0.9) == [first, other]


def test_two_chunks_exactly_at_the_threshold_are_no_duplicates() -> None:
    nine_of_ten = [Found(0.9, "a", "a b c d e f g h i"), Found(0.8, "b", "a b c d e f g h i j")]
    assert without_duplicates(nine_of_ten, above=0.9) == nine_of_ten


def test_deduplicate_respects_cap() -> None:
    rules = QualityRules(most_candidates=15, max_per_document=100)
    assert rules.candidates(5) == 15
    assert rules.candidates(2) == 6
    assert rules.candidates(20) == 20, "never fewer than are wanted"
    assert len(select(found(count=40), rules=rules, wanted=14)) == 14
    late = [*found(count=15, similarity=0.1), *found(count=5, similarity=0.9)]
    assert select(late, rules=rules, wanted=5) == [], "what lies behind the cap is not looked at"


def test_limit_per_document() -> None:
    of_one = found(count=5, document="one")
    of_two = found(count=2, document="two")
    assert limit_per_document([*of_one, *of_two], most=3) == [*of_one[:3], *of_two]


def test_chunks_that_are_not_similar_are_left_out_and_the_threshold_itself_is_similar_enough() -> None:
    near, at, far = found(count=3)
    chunks = [near, Found(0.3, "b", at.text), Found(0.2999, "c", far.text)]
    assert select(chunks, rules=QualityRules(), wanted=5) == chunks[:2]


@given(
    st.lists(
        st.builds(
            Found,
            st.floats(0, 1),
            st.sampled_from("abc"),
            st.lists(st.sampled_from(["lorem", "ipsum", "dolor", "sit", "amet"]), max_size=4).map(" ".join),
        ),
        max_size=30,
    ),
    st.integers(1, 10),
)
def test_what_is_selected_keeps_its_order_and_every_bound(chunks: list[Found], wanted: int) -> None:
    rules = QualityRules(max_per_document=2)
    chosen = select(chunks, rules=rules, wanted=wanted)
    positions = [next(i for i, chunk in enumerate(chunks) if chunk is each) for each in chosen]
    assert positions == sorted(positions)
    assert len(chosen) <= wanted
    assert all(chunk.similarity >= rules.min_similarity for chunk in chosen)
    assert all(sum(c.document_id == d for c in chosen) <= 2 for d in "abc")
    words = [frozenset(chunk.text.split()) for chunk in chosen]
    assert all(jaccard(a, b) <= 0.9 for i, a in enumerate(words) for b in words[:i])
