from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain.parts import PART_TOKENS, TITLE_CHARS, parts


def spans(text: str) -> list[tuple[int, int]]:
    """A token for each word."""
    found, at = [], 0
    for word in text.split(" "):
        if word:
            found.append((at, at + len(word)))
        at += len(word) + 1
    return found


def words(count: int) -> str:
    return " ".join(f"w{number}" for number in range(count))


def test_a_short_passage_is_one_part() -> None:
    assert parts(words(PART_TOKENS), spans(words(PART_TOKENS))) == [words(PART_TOKENS)]


def test_parts_are_of_nearly_the_same_length_and_each_begins_with_the_title() -> None:
    assert parts("a b c d e", spans("a b c d e"), title="Letters", most_tokens=2) == [
        "Letters: a",
        "Letters: b c",
        "Letters: d e",
    ]


def test_a_text_without_tokens_is_one_part() -> None:
    assert parts("\u0301", [], title="Marks") == ["Marks: \u0301"]


def test_a_title_leaves_room_for_the_part() -> None:
    assert parts("a", spans("a"), title="t" * 2048) == ["t" * TITLE_CHARS + ": a"]


@given(st.integers(1, 200), st.integers(1, 40))
def test_together_the_parts_hold_every_token_once(count: int, most: int) -> None:
    text = words(count)
    cut = parts(text, spans(text), most_tokens=most)
    assert " ".join(cut) == text
    assert len(cut) == -(-count // most)
    assert max(len(part.split()) for part in cut) <= most
