import mmh3
import pytest
from growth import assert_grows_linearly
from hypothesis import given
from hypothesis import strategies as st

from dats_common.domain import sparse
from dats_common.domain.sparse import encode_document, encode_query, identifier_ids, term_ids, terms


def overlap(query: str, document: str) -> float:
    weights = dict(zip(*vars_of(encode_document(document)), strict=True))
    found = encode_query(query)
    return sum(weights.get(index, 0.0) * value for index, value in zip(*vars_of(found), strict=True))


def vars_of(vector):
    return vector.indices, vector.values


@pytest.mark.parametrize(
    "spelling", ["getUserId", "GetUserId", "get_user_id", "GET_USER_ID", "GetUserID", "_get_user_id"]
)
def test_every_spelling_of_an_identifier_has_the_same_terms(spelling):
    assert list(terms(spelling)) == ["getuserid", "get", "user", "id"]


def test_a_whole_identifier_outweighs_its_parts():
    whole = overlap("get_user_id", "def getUserId(self): return self.id")
    parts = overlap("get_user_id", "get the id of the user")
    assert whole > parts > 0


@pytest.mark.parametrize("name", ["CVE-2024-1234", "1.20.3", "v1.20.3", "x86-64", "ISO-8601", "sha-256"])
def test_dotted_and_hyphenated_names_with_a_digit_are_kept_whole(name):
    assert name.lower() in terms(f"see {name}, please")


def test_a_version_differs_from_its_neighbours():
    assert overlap("1.20.3", "release 1.20.3") > overlap("1.20.3", "release 1.20.4")


def test_a_dotted_name_without_a_digit_is_found_by_its_parts_only():
    assert list(terms("os.path.join")) == ["os", "path", "join"]


def test_letter_digit_runs_stay_together():
    assert list(terms("sha256 utf8 x86")) == ["sha256", "utf8", "x86"]


def test_words_are_stemmed_alike_in_query_and_document():
    assert overlap("indexes", "the index of an indexing service") > 0


@pytest.mark.parametrize(
    ("one", "other"), [("STRASSE", "straße"), ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("Ünïcode", "ünïCODE"), ("café", "cafe\u0301")]
)
def test_non_ascii_words_match_whatever_their_case_and_composition(one, other):
    assert list(terms(one)) == list(terms(other)) != []


def test_stop_words_carry_no_terms():
    assert list(terms("what is the meaning of it")) == ["mean"]


@pytest.mark.parametrize("text", ["", " \n\t", "the of and", "!?#", "\0"])
def test_a_text_without_terms_gives_the_empty_vector(text):
    assert encode_document(text) == encode_query(text) == sparse.SparseVector((), ())


def test_ids_are_those_of_qdrants_own_bm25():
    assert encode_query("sqlite").indices == (abs(mmh3.hash("sqlite", 0)),)


def test_a_repeated_term_weighs_more_but_less_than_proportionally():
    once, thrice = (encode_document(text).values[0] for text in ("kafka", "kafka kafka kafka"))
    assert once < thrice < 3 * once


def test_a_term_weighs_less_in_a_longer_text():
    assert overlap("kafka", "kafka " + "filler " * 300) < overlap("kafka", "kafka filler")


@given(st.text(alphabet=st.characters()))
def test_any_text_gives_unique_ascending_ids_with_positive_weights(text):
    for vector in (encode_document(text), encode_query(text)):
        assert list(vector.indices) == sorted(set(vector.indices))
        assert len(vector.indices) == len(vector.values)
        assert all(0 <= index < 2**32 for index in vector.indices)
        assert all(0 < value < 10 for value in vector.values)


@pytest.mark.parametrize("unit", ["a", "A", "aB", "é", "1", "a-", "1.", "_", "\0", "語", "Aa1_", "x y ", "ﷺ"])
def test_time_grows_with_a_line_whatever_it_is(unit):
    assert_grows_linearly(encode_document, (unit * 1_000_000)[:1_000_000])


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("where is get_user_id defined", ["get_user_id"]),
        ("getUserId or get_user_ids?", ["get_user_id", "get_user_ids"]),
        ("how to use JavaScript on an iPhone with CVE-2024-1234", []),
        ("_private __init__ plain words", []),
        ("", []),
    ],
)
def test_names_of_code_are_told_as_wholes(query: str, names: list[str]) -> None:
    wholes = [identifier_ids(name) for name in names]
    assert identifier_ids(query) == frozenset().union(*wholes)
    assert len(identifier_ids(query)) == len(names)


def test_a_document_holds_a_name_in_every_spelling_and_not_in_its_plural():
    (wanted,) = identifier_ids("getUserId")
    assert wanted in term_ids("def get_user_id(self)")
    assert wanted not in term_ids("def get_user_ids(self): return user.id")
