"""Citations: only issued sources leave, however a marker was written and the answer was cut."""

from __future__ import annotations

import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from injections import ALSO_OURS, ATTACKS, ISSUED_IDS, OURS, THEIRS, Attack

from dats_common.domain.citations import (
    LONGEST_MARKER,
    SOURCE_ID_PATTERN,
    Issued,
    MarkerStream,
    Resolved,
    canonical,
    defuse_markers,
    fold,
    resolve,
    strip_markers,
)
from dats_common.domain.snippets import snippet, snippet_full

ISSUED = Issued.of(ISSUED_IDS)
FIRST, SECOND, THIRD = map(canonical, ISSUED_IDS)
LOOKALIKE = re.compile(r"source\W*[il|]d\W*[0-9a-f-]{36}\s*:\s*\d+|(?<![\w\])}])\[\W*\d[\d\s,;&-]*\]")
FRAGMENTS = [
    "[", "]", "1", "2", "9", " ", "\n", "`", "```", "~~~", "SourceId", "SourceId: ", ":", "source", "Source: ", OURS,
    ALSO_OURS, f"{OURS}:3", f"{THEIRS}:0", *map(canonical, ISSUED_IDS), "(", ")", "x", "a", "=", ",", "-", ".", "【",
    "］", "\u200b", "０", "the ", "and ", "\\", "ѕ", "\u0301", "|", ">", "…", "é", "語", "😀", "!", "#", "^",
]  # fmt: skip
answers = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join) | st.text(
    alphabet="[]12sid: `\nS-=.a", max_size=60
)


WORDS = [
    "dead beef",
    "Sound data. ",
    "cafe-babe:",
    "source of",
    "so [1]",
    "a_b[2] ",
    "x = ",
    "0-9",
    OURS[:30],
    " \u2011f",
    "f\u200b1 ",
]


def folded(text: str) -> str:
    return "".join(map(fold, text))


# ------------------------------------------------------------------------------------------------- named by the spec


def test_extract_citations_valid() -> None:
    resolved = resolve(f"Ten [1], not nine [SourceId: {OURS}:3]. Ten [1].", ISSUED)
    assert resolved.text == f"Ten {FIRST}, not nine {SECOND}. Ten {FIRST}."
    assert resolved.source_ids == ISSUED_IDS[:2]
    assert resolved.refused == 0


@pytest.mark.parametrize(
    "marker",
    [
        f"[SourceId: {OURS}]",
        f"[SourceId: {OURS}:]",
        f"[SourceId: {OURS}:x]",
        f"[SourceId: {OURS}:-1]",
        "[SourceId: 1:2]",
    ],
)
def test_extract_citations_invalid_format(marker: str) -> None:
    assert resolve(f"Ten {marker}.", ISSUED) == Resolved("Ten.", (), (), 1)


def test_extract_citations_unknown_id() -> None:
    assert resolve(f"Ten [SourceId: {THEIRS}:0] or [7].", ISSUED) == Resolved("Ten or.", (), (), 2)


def test_grounded_true_with_citations() -> None:
    assert resolve("Ten [7] [2].", ISSUED).grounded


def test_grounded_false_no_citations() -> None:
    assert not resolve("Ten [7], a[1], `[1]`.", ISSUED).grounded


# ---------------------------------------------------------------------------------------------------------- resolving


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("[1][3]", FIRST + THIRD),
        ("[1, 3]", FIRST + THIRD),
        ("[1-3]", FIRST + SECOND + THIRD),
        ("[1 and 3]", FIRST + THIRD),
        ("[source 2] [Source: 2] [SOURCES 2]", f"{SECOND} {SECOND} {SECOND}"),
        (f"[ sourceid :{OURS.upper()}:3 ]", SECOND),
        (f"SourceId: {OURS}:3", SECOND),
        ("【1】 ［２］ [\u200b3]", f"{FIRST} {SECOND} {THIRD}"),
        ("**Ten**[1]. 東京[2]。", f"**Ten**{FIRST}. 東京{SECOND}。"),
        ("(see [1])", f"(see {FIRST})"),
    ],
)
def test_every_way_to_write_an_issued_marker_becomes_canonical(answer: str, text: str) -> None:
    resolved = resolve(answer, ISSUED)
    assert (resolved.text, resolved.refused) == (text, 0)


@pytest.mark.parametrize(
    "answer",
    [
        "a[1] f(x)[0] m[1][2] x = [1, 2]",
        "`[1]` ``a ` [2]``",
        "```python\nprint([1])\n```",
        "~~~\n[1]\n~~~",
        "[2024-01-15 10:00] [ ] [x] [1st] [note] [link](https://example.org)",
    ],
)
def test_subscripts_code_and_other_brackets_are_no_markers(answer: str) -> None:
    assert resolve(answer, ISSUED) == Resolved(answer, (), (), 0)


def test_after_code_markers_count_again() -> None:
    resolved = resolve("`[1]` [2]\n```\n[1]\n```\n[3] an unclosed ` ends with its line\n[3]", ISSUED)
    assert resolved.source_ids == ISSUED_IDS[1:]


def test_a_range_counts_only_whole_and_a_list_by_its_members() -> None:
    assert resolve("[2-4]", ISSUED).source_ids == ()
    assert resolve("[1, 9]", ISSUED) == Resolved(FIRST, ISSUED_IDS[:1], resolve("[1]", ISSUED).spans, 1)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("foo [9].", "foo."),
        ("foo [9] bar", "foo bar"),
        ("[9] Foo", "Foo"),
        ("foo [9]\nbar [9]", "foo\nbar"),
        ("foo[SourceId: x]bar", "foo bar"),
        ("- [9] foo", "- foo"),
        ("[7 [9]]", "[7 …]"),
        (f"foo {OURS}:{'0' * 300}3 bar", "foo bar"),
    ],
)
def test_where_a_marker_was_removed_the_spacing_is_tidy(answer: str, text: str) -> None:
    assert resolve(answer, ISSUED).text == text


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_of_an_obedient_answer_nothing_leaves_that_was_not_issued(attack: Attack) -> None:
    resolved = resolve(attack.answer, ISSUED)
    assert set(resolved.source_ids) <= set(ISSUED_IDS)
    assert set(SOURCE_ID_PATTERN.findall(resolved.text)) <= set(ISSUED_IDS)
    assert not LOOKALIKE.search(folded(SOURCE_ID_PATTERN.sub(" ", resolved.text)))
    for secret in attack.never:
        assert secret not in SOURCE_ID_PATTERN.sub("[]", resolved.text)
    assert THEIRS not in folded(resolved.text)


def test_there_are_many_attacks_and_each_has_its_own_name() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS) >= 45


@given(answers)
def test_whatever_is_answered_only_issued_ids_leave_and_stay(answer: str) -> None:
    resolved = resolve(answer, ISSUED)
    assert set(SOURCE_ID_PATTERN.findall(resolved.text)) <= set(ISSUED_IDS)
    assert [resolved.text[span.start : span.end] for span in resolved.spans] == [
        canonical(span.source_id) for span in resolved.spans
    ]
    assert resolved.source_ids == tuple(dict.fromkeys(span.source_id for span in resolved.spans))
    again = resolve(resolved.text, ISSUED)
    assert again == Resolved(resolved.text, resolved.source_ids, resolved.spans, 0)


@given(answers)
def test_without_markers_no_marker_is_left(answer: str) -> None:
    stripped = strip_markers(answer)
    assert not SOURCE_ID_PATTERN.search(stripped)
    assert resolve(stripped, ISSUED) == Resolved(stripped, (), (), 0)


def test_stripping_leaves_what_is_said() -> None:
    assert strip_markers(f"Ten {FIRST}, or a[1] [2].") == "Ten, or a[1]."
    assert defuse_markers("`[1]` a[1] [2]") == "`(1)` a[1] (2)"


@pytest.mark.parametrize("marker", ["[1]", "［１］", f"{'0' * 36}:3", f"SourceId: {'A' * 36}:3", "０" * 36 + "：３"])
def test_whatever_a_reader_takes_for_a_marker_is_defused_and_all_else_stays(marker: str) -> None:
    around = "a: b, (c) <d> e-f 12:30 source "
    assert defuse_markers(around) == around
    assert resolve(around + marker, ISSUED).refused + len(resolve(around + marker, ISSUED).source_ids) == 1
    assert resolve(defuse_markers(around + marker), ISSUED).spans == ()
    assert resolve(defuse_markers(around + marker), ISSUED).refused == 0


# ---------------------------------------------------------------------------------------------------------- streaming


@given(answers, st.data())
def test_a_stream_says_the_same_however_it_is_cut(answer: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=len(answer))))
    stream = MarkerStream(ISSUED)
    left, cited = "", []
    for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True):
        left += stream.feed(answer[start:end])
        cited += stream.new_citations()
    left += stream.finish()
    cited += stream.new_citations()
    assert Resolved(left, stream.source_ids, stream.spans, stream.refused) == resolve(answer, ISSUED)
    assert tuple(cited) == stream.source_ids


@given(st.lists(answers | st.sampled_from(WORDS), max_size=8).map("".join), st.integers(0, 200))
def test_what_may_pass_as_a_stretch_leaves_as_it_would_sign_by_sign(answer: str, cut: int) -> None:
    def read() -> tuple[Resolved, str, str]:
        stream = MarkerStream(ISSUED)
        left = stream.feed(answer[:cut]) + stream.feed(answer[cut:]) + stream.finish()
        return Resolved(left, stream.source_ids, stream.spans, stream.refused), left, defuse_markers(answer)

    with mock.patch("dats_common.domain.citations.stream._PLAIN", re.compile("(?!)")):
        sign_by_sign = read()
    assert read() == sign_by_sign


def test_text_leaves_at_once_and_only_a_possible_marker_waits() -> None:
    stream = MarkerStream(ISSUED)
    assert stream.feed("Ten is the limit [") == "Ten is the limit"
    assert stream.feed("1") == ""
    assert stream.feed("] so") == f" {FIRST}"
    assert stream.new_citations() == ISSUED_IDS[:1]
    assert stream.feed("me more") == " some more"
    assert stream.new_citations() == ()
    assert stream.feed(" [no") == " [no"


@pytest.mark.parametrize(
    "unit", ["[", "[1,", "1,", "` [1]", "[SourceId:", "a", "550e8400-", " ", "[ ", "[source: a", "\u200b", "「["]
)
def test_of_a_hundred_thousand_characters_a_bounded_part_waits(unit: str) -> None:
    text = "[" + (unit * 100_000)[:100_000]
    stream = MarkerStream(ISSUED)
    left = 0
    for fed, char in enumerate(text, start=1):
        left += len(stream.feed(char))
        if not stream.refused:
            assert fed - left <= 2 * LONGEST_MARKER + 2
    stream.finish()
    assert stream.source_ids == () or unit == "` [1]"


# ------------------------------------------------------------------------------------------------------------- issued


def test_aliases_count_from_one_and_lead_both_ways() -> None:
    assert [ISSUED.source_id(alias) for alias in (0, 1, 3, 4, -1)] == [None, ISSUED_IDS[0], ISSUED_IDS[2], None, None]
    assert [ISSUED.alias(source_id) for source_id in (*ISSUED_IDS, f"{THEIRS}:0")] == [1, 2, 3, None]
    assert ISSUED_IDS[0] in ISSUED
    assert f"{THEIRS}:0" not in ISSUED


@pytest.mark.parametrize("source_id", ["", "1", f"{OURS}:", OURS, f"{OURS}:1\n", f"{OURS}:1]", f"{OURS.upper()}:1"])
def test_what_is_no_source_id_is_not_issued(source_id: str) -> None:
    with pytest.raises(ValueError, match="not a source id"):
        Issued.of([source_id])


def test_snippets_are_the_spec_s() -> None:
    assert snippet("x" * 200) == "x" * 200
    assert snippet("x" * 201) == "x" * 200 + "..."
    assert snippet_full("x" * 2000) == "x" * 1000
