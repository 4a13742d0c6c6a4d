"""Events: spec 1's bare messages are taken, and every bad one is refused with a reason that names the field only."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dats_common.contracts.events import (
    ValidatedData,
    build_completed,
    build_embed_command,
    build_failed,
    build_invalidated,
    build_quarantined,
    parse_time,
    parse_validated,
    rfc3339,
)
from dats_common.contracts.metadata import ArtifactMetadata
from dats_common.contracts.readable import Names, names_in, parse_tainted
from dats_common.contracts.strict_json import MAX_DEPTH
from dats_common.domain.model import ArtifactKey, EventTime, Scope, Taint, Validated
from dats_common.errors import InvalidInput

SECRET = "hunter2 is secret content"
NOON = 1_769_860_800_000_000  # 2026-01-31T12:00:00Z


def data(**changes: Any) -> dict[str, Any]:
    return {"artifact_id": "art-789", "content": SECRET, "metadata": {"project_id": "proj-123"}, **changes}


def body(message: Any) -> bytes:
    return json.dumps(message).encode()


def validated(message: Any, **properties: Any) -> Validated:
    raw = message if isinstance(message, bytes) else body(message)
    return parse_validated(raw, event_type=properties.pop("event_type", "task.validated"), **properties)


def tainted(message: Any, **properties: Any) -> Taint:
    taint, rejected = parse_tainted(body(message), **properties)
    assert rejected == []
    return taint


def refused(message: Any, **properties: Any) -> str:
    with pytest.raises(InvalidInput) as caught:
        validated(message, **properties)
    assert "hunter2" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ what is accepted


def test_data_alone_is_enough() -> None:
    event = validated({"data": data()})
    assert event.key == ArtifactKey("default", "art-789")
    assert event.content == SECRET
    assert event.time == EventTime()
    assert event.metadata.project_id == "proj-123"
    assert event.metadata.verified is True
    assert event.metadata.provenance_id == ""
    assert event.metadata.scope is Scope.PROJECT


def test_unknown_fields_of_the_envelope_and_of_data_are_ignored() -> None:
    assert validated({"data": data(colour="red"), "subject": 3, "datacontenttype": None}).key.artifact_id == "art-789"


def test_all_metadata_arrives_and_unknown_keys_are_kept_as_canonical_json() -> None:
    metadata = {
        "project_id": "p",
        "provenance_id": "prov",
        "task_id": "t",
        "domain": "code-general",
        "doc_type": "output",
        "verified": False,
        "scope": "user",
        "user_id": "u",
        "tags": ["b", "a", "b"],
        "title": "T",
        "source_uri": "file://x",
        "zebra": 1,
        "ant": {"y": "ü", "x": None},
    }
    source = validated({"data": data(metadata=metadata)}).metadata
    assert (source.provenance_id, source.task_id, source.domain, source.doc_type) == (
        "prov",
        "t",
        "code-general",
        "output",
    )
    assert (source.verified, source.scope, source.user_id, source.tags) == (False, Scope.USER, "u", ("b", "a"))
    assert source.extra == '{"ant":{"x":null,"y":"ü"},"zebra":1}'


def test_the_order_of_keys_does_not_change_the_content_hash() -> None:
    one = validated({"data": data(metadata={"project_id": "p", "x": 1, "y": 2})})
    other = validated({"data": data(metadata={"y": 2, "x": 1, "project_id": "p"})})
    assert one.content_hash == other.content_hash


def test_null_metadata_counts_as_absent() -> None:
    source = validated({"data": data(metadata={"project_id": "p", "domain": None, "tags": None, "x": None})}).metadata
    assert (source.domain, source.tags, source.extra) == ("", (), "{}")


@pytest.mark.parametrize("artifact_id", ["with spaces", "a/b/../c", "ünïcödé", "x" * 256])
def test_ids_with_spaces_and_slashes_are_ids(artifact_id: str) -> None:
    assert validated({"data": data(artifact_id=artifact_id)}).key.artifact_id == artifact_id


def test_a_line_of_a_million_characters_is_content() -> None:
    assert len(validated({"data": data(content="x" * 1_000_000)}).content) == 1_000_000


@pytest.mark.parametrize(
    "changes", [{"tenant_id": "acme"}, {"metadata": {"project_id": "p", "tenant_id": "acme"}}], ids=["data", "metadata"]
)
def test_the_tenant_may_stand_in_data_or_in_metadata(changes: dict[str, Any]) -> None:
    event = validated({"data": data(**changes)})
    assert event.key.tenant_id == "acme"
    assert event.metadata.extra == "{}"


# --------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"data": {}', "not JSON"),
        (b"[]", "a JSON object is needed"),
        (b"null", "a JSON object is needed"),
        (b'{"data": NaN}', "NaN is not JSON"),
        (b'{"data": -Infinity}', "-Infinity is not JSON"),
        (b'{"data": 1e999}', "out of range"),
        (b'{"data": ' + b"9" * 5000 + b"}", "64 bits"),
        (b'{"data": {"a": 1, "a": 2}}', "same key twice"),
        (b'{"data": "\xff\xfe"}', "not valid UTF-8"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nested deeper"),
        (b" " * (8 * 1024 * 1024 + 1), "at most"),
    ],
)
def test_what_is_not_strict_json_is_refused(raw: bytes, said: str) -> None:
    message = refused(raw)
    assert message.startswith("body: ")
    assert said in message


def test_the_deepest_allowed_document_is_read() -> None:
    nested: Any = 1
    for _ in range(MAX_DEPTH - 3):
        nested = [nested]
    assert validated({"data": data(metadata={"project_id": "p", "x": nested})}).metadata.extra.startswith('{"x":[[')


@pytest.mark.parametrize("field", ["artifact_id", "content", "metadata"])
def test_a_missing_field_is_named(field: str) -> None:
    given = data()
    del given[field]
    assert refused({"data": given}) == f"data.{field}: is required"


def test_a_missing_project_is_named() -> None:
    assert refused({"data": data(metadata={})}) == "data.metadata.project_id: is required"


def test_missing_data_is_named() -> None:
    assert refused({"artifact_id": "a"}) == "data: is required"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"artifact_id": 7}, "data.artifact_id"),
        ({"artifact_id": None}, "data.artifact_id"),
        ({"artifact_id": ["a"]}, "data.artifact_id"),
        ({"artifact_id": ""}, "data.artifact_id"),
        ({"artifact_id": "  "}, "data.artifact_id"),
        ({"artifact_id": "x" * 300}, "data.artifact_id"),
        ({"artifact_id": "a\0b"}, "data.artifact_id"),
        ({"artifact_id": "a\nb"}, "data.artifact_id"),
        ({"artifact_id": "a\ud800b"}, "data.artifact_id"),
        ({"content": 1234567890}, "data.content"),
        ({"content": ["hunter2"]}, "data.content"),
        ({"content": ""}, "data.content"),
        ({"content": " " * 20}, "data.content"),
        ({"content": "hunter2 and more\0"}, "data.content"),
        ({"content": "hunter2 and more\udfff"}, "data.content"),
        ({"content": "x" * 1_000_001}, "data.content"),
        ({"content": "é" * 600_000}, "data.content"),
        ({"metadata": "project_id"}, "data.metadata"),
        ({"metadata": {"project_id": 1}}, "data.metadata.project_id"),
        ({"metadata": {"project_id": ""}}, "data.metadata.project_id"),
        ({"metadata": {"project_id": "p", "verified": "yes"}}, "data.metadata.verified"),
        ({"metadata": {"project_id": "p", "verified": 1}}, "data.metadata.verified"),
        ({"metadata": {"project_id": "p", "verified": None}}, "data.metadata.verified"),
        ({"metadata": {"project_id": "p", "tags": "a"}}, "data.metadata.tags"),
        ({"metadata": {"project_id": "p", "tags": [1]}}, "data.metadata.tags[0]"),
        ({"metadata": {"project_id": "p", "tags": ["x" * 129]}}, "data.metadata.tags[0]"),
        ({"metadata": {"project_id": "p", "tags": [str(n) for n in range(65)]}}, "data.metadata.tags"),
        ({"metadata": {"project_id": "p", "scope": "world"}}, "data.metadata.scope"),
        ({"metadata": {"project_id": "p", "scope": "user"}}, "data.metadata"),
        ({"metadata": {"project_id": "p", "title": "x" * 3000}}, "data.metadata.title"),
        ({"metadata": {"project_id": "p", "title": "# a\n# b"}}, "data.metadata.title"),
        ({"metadata": {"project_id": "p", "x": "hunter2" * 3000}}, "data.metadata"),
        ({"metadata": {"project_id": "p", "x": ["hunter2\0"]}}, "data.metadata"),
        ({"metadata": {"project_id": "p", "x": {"hunter2\ud800": 1}}}, "data.metadata"),
        ({"metadata": {"project_id": "p", "artifact_id": "other"}}, "data"),
        ({"tenant_id": "a", "metadata": {"project_id": "p", "tenant_id": "b"}}, "data"),
        ({"tenant_id": 3}, "data.tenant_id"),
    ],
)
def test_a_field_that_breaks_the_contract_is_named_and_not_quoted(changes: dict[str, Any], field: str) -> None:
    assert refused({"data": data(**changes)}).startswith(f"{field}: ")


def test_a_validation_error_that_reaches_a_log_does_not_quote_the_input() -> None:
    with pytest.raises(ValidationError) as caught:
        ValidatedData.model_validate(data(content=[SECRET]))
    assert "hunter2" not in str(caught.value)


def test_long_content_is_refused_with_the_unit_it_exceeds() -> None:
    assert "1000000 characters" in refused({"data": data(content="x" * 1_000_001)})
    assert "1048576 bytes" in refused({"data": data(content="é" * 600_000)})


def test_an_envelope_of_another_type_is_refused() -> None:
    assert refused({"type": "task.rejected", "data": data()}).startswith("type: ")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda s: st.lists(s) | st.dictionaries(st.text(), s),
)


@given(ANY_JSON)
def test_any_json_is_an_event_or_a_refusal(message: Any) -> None:
    for raw in (body(message), body({"data": message}), body({"data": data(metadata=message)})):
        for parse in (lambda raw: parse_validated(raw, event_type="task.validated"), parse_tainted):
            with contextlib.suppress(InvalidInput):
                parse(raw)


# -------------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31t12:00:00z", NOON),
        ("2026-01-31 13:00:00+01:00", NOON),
        ("2026-01-31T12:00:00.5Z", NOON + 500_000),
        ("2026-01-31T12:00:00.123456789Z", NOON + 123_456),
        ("2026-01-31T06:30:00.000001-05:30", NOON + 1),
    ],
)
def test_a_time_with_an_offset_is_a_place_in_history(text: str, expected: int) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-01-31T12:00:00", "offset"),
        ("2026-01-31", "RFC 3339"),
        ("20260131T120000Z", "RFC 3339"),
        ("yesterday", "RFC 3339"),
        ("", "RFC 3339"),
        ("2026-02-30T12:00:00Z", "no such date"),
        ("2026-01-31T25:00:00Z", "no such date"),
        ("1999-12-31T23:59:59Z", "outside of 2000 to 2100"),
        ("0001-01-01T00:00:00+23:59", "outside of 2000 to 2100"),
        ("9999-12-31T23:59:59Z", "outside of 2000 to 2100"),
        ("2026-01-31T12:00:00Z\n", "RFC 3339"),
        ("٢٠٢٦-01-31T12:00:00Z", "RFC 3339"),
    ],
)
def test_a_time_without_a_moment_is_refused_with_the_reason(text: str, said: str) -> None:
    assert said in refused({"time": text, "data": data()})


def test_a_time_that_is_a_number_is_refused() -> None:
    assert refused({"time": NOON, "data": data()}).startswith("time: ")


def test_the_envelope_places_an_event_before_the_amqp_timestamp_does() -> None:
    timed = {"time": "2026-01-31T12:00:00Z", "data": data()}
    assert validated(timed, timestamp_us=NOON + 5).time == EventTime(NOON)
    assert validated({"data": data()}, timestamp_us=NOON + 5).time == EventTime(NOON + 5)
    assert refused({"data": data()}, timestamp_us=NOON * 1000).startswith("AMQP timestamp: ")


def test_only_the_replicas_command_claims_the_ledgers_clock() -> None:
    message = {"time": "2026-01-31T12:00:00Z", "data": data()}
    assert validated(message, event_type="rag.embed").time == EventTime(NOON, own_clock=True)
    assert validated(message).time == EventTime(NOON, own_clock=False)
    assert refused({"data": data()}, event_type="rag.embed", timestamp_us=NOON).startswith("time: ")


@given(st.integers(min_value=parse_time("2000-01-01T00:00:00Z"), max_value=parse_time("2099-12-31T23:59:59Z")))
def test_a_time_we_write_reads_back_to_the_microsecond(moment: int) -> None:
    assert parse_time(rfc3339(moment)) == moment


# ---------------------------------------------------------------------------------------------------- identity


def test_an_event_is_known_by_source_and_id() -> None:
    assert validated({"source": "qa", "id": "1", "data": data()}, message_id="m").event_id == "qa/1"


def test_an_event_without_an_id_is_known_by_its_message_id() -> None:
    assert validated({"data": data()}, message_id="m").event_id == "m"


def test_a_bare_event_is_known_by_what_it_says() -> None:
    event_id = validated({"data": data()}).event_id
    assert event_id == validated({"data": data(), "specversion": "1.0"}).event_id
    others = [
        data(content=f"{SECRET}!"),
        data(artifact_id="b"),
        data(tenant_id="t"),
        data(metadata={"project_id": "q"}),
    ]
    assert len({event_id, *(validated({"data": other}).event_id for other in others)}) == 5


# ------------------------------------------------------------------------------------------------------- taints


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({"artifact_id": "a"}, ("a",)),
        ({"artifact_ids": ["b", "a", "b"]}, ("b", "a")),
        ({"artifact_id": "a", "artifact_ids": ["b", "a"]}, ("a", "b")),
        ({"artifact_id": "a", "artifact_ids": None}, ("a",)),
        ({"artifact_id": None, "artifact_ids": ["a"]}, ("a",)),
        ({"artifact_id": "a", "artifact_ids": []}, ("a",)),
    ],
)
def test_either_key_names_the_artifacts_and_both_are_joined(given: dict[str, Any], ids: tuple[str, ...]) -> None:
    assert tainted({"data": given}).artifact_ids == ids


def test_a_bare_taint_covers_every_tenant_and_has_no_identity() -> None:
    taint = tainted({"data": {"artifact_id": "a"}})
    assert (taint.tenant_id, taint.event_id, taint.cascade_id, taint.reason) == (None, None, None, None)
    assert taint.time == EventTime()


@pytest.mark.parametrize("place", [{"tenant_id": "acme"}, {"metadata": {"tenant_id": "acme"}}])
def test_a_taint_may_name_its_tenant_in_data_or_in_metadata(place: dict[str, Any]) -> None:
    assert tainted({"data": {"artifact_id": "a", **place}}).tenant_id == "acme"


def test_a_full_taint_arrives_whole() -> None:
    message = {
        "id": "7",
        "source": "cascade",
        "type": "artifact.tainted",
        "time": "2026-01-31T12:00:00Z",
        "data": {"artifact_ids": ["a"], "cascade_id": "c", "reason": "upstream_taint"},
    }
    assert tainted(message) == Taint(None, ("a",), EventTime(NOON), "c", "upstream_taint", "cascade/7")


def test_unusable_ids_do_not_shield_the_usable_ones() -> None:
    ids = ["a", "", 3, None, "x" * 300, "\ud800", "n\0", "b"]
    taint, rejected = parse_tainted(body({"data": {"artifact_ids": ids, "artifact_id": {"no": 1}}}))
    assert taint.artifact_ids == ("a", "b")
    assert [each.partition(":")[0] for each in rejected] == [
        "data.artifact_id",
        *(f"data.artifact_ids[{n}]" for n in (1, 2, 3, 4, 5, 6)),
    ]


@pytest.mark.parametrize(
    ("given", "ids", "flaw"),
    [
        ({"artifact_ids": "a,b", "artifact_id": "c"}, ("c", "a,b"), "data.artifact_ids: a list is needed"),
        ({"artifact_ids": "a"}, ("a",), "data.artifact_ids: a list is needed"),
        ({"artifact_id": ["a", "b"]}, ("a", "b"), "data.artifact_id: a string is needed"),
    ],
)
def test_ids_under_the_wrong_one_of_the_two_keys_are_meant_and_reported(
    given: dict[str, Any], ids: tuple[str, ...], flaw: str
) -> None:
    taint, flaws = parse_tainted(body({"data": given}))
    assert taint.artifact_ids == ids
    assert flaws == [flaw]


def test_ten_thousand_ids_are_one_taint() -> None:
    assert len(tainted({"data": {"artifact_ids": [f"a{n}" for n in range(10_000)]}}).artifact_ids) == 10_000


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "data"),
        ({"artifact_ids": []}, "data"),
        ({"artifact_id": 7}, "data.artifact_id"),
        ({"artifact_ids": ["", 3]}, "data.artifact_ids[0]"),
        ({"artifact_ids": {"a": 1}}, "data.artifact_ids"),
    ],
)
def test_a_taint_of_which_no_id_can_be_read_is_refused_with_the_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_tainted(body({"data": given}))
    assert str(caught.value).startswith(f"{field}: ")


# What may stand beside the ids of a taint, and what is said of it.
FLAWS: dict[str, tuple[dict[str, Any], str]] = {
    "a reason too long": ({"data": {"reason": "hunter2 " * 600}}, "data.reason"),
    "a reason with a null character": ({"data": {"reason": "hunter2\0"}}, "data.reason"),
    "a reason that is an object": ({"data": {"reason": {"hunter2": 1}}}, "data.reason"),
    "a lone surrogate": ({"data": {"reason": "hunter2\ud800"}}, "data.reason"),
    "a number as cascade": ({"data": {"cascade_id": 7}}, "data.cascade_id"),
    "metadata that is text": ({"data": {"metadata": "hunter2"}}, "data.metadata"),
    "a time that is none": ({"time": "hunter2 o'clock"}, "time"),
    "a time that is a number": ({"time": 1_769_860_800}, "time"),
    "a time of 1970": ({"time": "1970-01-01T00:00:00Z"}, "time"),
    "a time without offset": ({"time": "2026-01-31T12:00:00"}, "time"),
    "a number as id": ({"id": 7}, "id"),
    "an id too long": ({"id": "x" * 257}, "id"),
    "a version that is a number": ({"specversion": 1.0}, "specversion"),
    "a source with a line break": ({"source": "cas\ncade"}, "source"),
    "a type that is a list": ({"type": []}, "type"),
    "a number as tenant": ({"data": {"tenant_id": 7}}, "data.tenant_id"),
    "a blank tenant": ({"data": {"tenant_id": " "}}, "data.tenant_id"),
    "a number as tenant in metadata": ({"data": {"metadata": {"tenant_id": 7}}}, "data.metadata.tenant_id"),
    "two tenants": ({"data": {"tenant_id": "x", "metadata": {"tenant_id": "y"}}}, "data"),
}


@pytest.mark.parametrize(("flawed", "field"), FLAWS.values(), ids=FLAWS)
def test_a_flaw_beside_the_ids_does_not_shield_them_and_is_reported(flawed: dict[str, Any], field: str) -> None:
    message = {"id": "1", **flawed, "data": {"artifact_ids": ["a", "b"], **flawed.get("data", {})}}
    taint, flaws = parse_tainted(body(message), message_id="m")
    assert taint.artifact_ids == ("a", "b")
    assert [flaw.partition(":")[0] for flaw in flaws] == [field]
    assert "hunter2" not in repr((taint, flaws))


UNCLEAN = {
    "NaN": b'{"data": {"artifact_id": "a", "score": NaN}}',
    "a number out of range": b'{"data": {"artifact_id": "a", "score": ' + b"9" * 5000 + b"}}",
    "Latin-1": '{"data": {"artifact_id": "a", "reason": "für"}}'.encode("latin-1"),
    "Latin-1 in a key": '{"für": 1, "data": {"artifact_id": "a", "für": 1}}'.encode("latin-1"),
    "a byte order mark": b'\xef\xbb\xbf{"data": {"artifact_id": "a"}}',
    "nested too deep": b'{"data": {"artifact_id": "a", "x": ' + b"[" * 40 + b"]" * 40 + b"}}",
}


@pytest.mark.parametrize("raw", UNCLEAN.values(), ids=UNCLEAN)
def test_a_taint_in_json_that_is_not_strict_is_read_as_far_as_it_can_be(raw: bytes) -> None:
    taint, flaws = parse_tainted(raw)
    assert (taint.artifact_ids, taint.reason) == (("a",), None)
    assert flaws[0].startswith("body: ")


def test_of_keys_that_come_twice_in_a_taint_both_are_meant() -> None:
    raw = b'{"data": {"artifact_id": "a", "tenant_id": "x"}, "data": {"artifact_id": "b", "tenant_id": "y"}}'
    taint, flaws = parse_tainted(raw)
    assert (taint.artifact_ids, taint.tenant_id) == (("a", "b"), None)
    assert flaws[0] == "body: an object has the same key twice"


def test_a_million_equal_keys_are_read_at_once() -> None:
    raw = b'{"data": {"artifact_id": "a", ' + b'"x":1,' * 1_000_000 + b'"y": 1}}'
    assert parse_tainted(raw)[0].artifact_ids == ("a",)


@given(st.sampled_from(["specversion", "id", "source", "type", "time"]), ANY_JSON)
def test_nothing_in_the_envelope_shields_an_id(field: str, value: Any) -> None:
    assert parse_tainted(body({field: value, "data": {"artifact_id": "a"}}))[0].artifact_ids == ("a",)


@given(st.sampled_from(["cascade_id", "reason", "tenant_id", "metadata", "x"]), ANY_JSON)
def test_nothing_beside_an_id_shields_it(field: str, value: Any) -> None:
    assert parse_tainted(body({"data": {"artifact_id": "a", field: value}}))[0].artifact_ids == ("a",)


@pytest.mark.parametrize("unusable", [{"time": "noon"}, {"time": NOON}, {"time": "1970-01-01T00:00:00Z"}])
def test_a_taint_with_an_unusable_time_stands_where_it_is_first_received(unusable: dict[str, Any]) -> None:
    message = {"id": "1", **unusable, "data": {"artifact_id": "a"}}
    taint, _ = parse_tainted(body(message), timestamp_us=NOON)
    assert (taint.time, taint.event_id) == (EventTime(), "artifact.tainted/1")


def test_a_taint_with_an_unusable_amqp_timestamp_stands_where_it_is_first_received() -> None:
    taint, flaws = parse_tainted(body({"data": {"artifact_id": "a"}}), timestamp_us=NOON * 1000)
    assert taint.time == EventTime()
    assert flaws == ["AMQP timestamp: outside of 2000 to 2100"]


@pytest.mark.parametrize(
    ("data", "tenant_id"),
    [
        ({"tenant_id": 7}, None),
        ({"tenant_id": 7, "metadata": {"tenant_id": "acme"}}, None),
        ({"tenant_id": "acme", "metadata": {"tenant_id": 7}}, None),
        ({"tenant_id": "acme", "metadata": {"tenant_id": "other"}}, None),
        ({"tenant_id": "acme", "metadata": "no place for a tenant"}, "acme"),
    ],
)
def test_a_taint_whose_tenant_is_uncertain_covers_every_tenant(data: dict[str, Any], tenant_id: str | None) -> None:
    assert parse_tainted(body({"data": {"artifact_id": "a", **data}}))[0].tenant_id == tenant_id


def test_an_id_without_its_readable_source_does_not_make_a_taint_the_copy_of_another() -> None:
    message = {"id": "1", "source": "cas\ncade", "data": {"artifact_id": "a"}}
    assert parse_tainted(body(message), message_id="m")[0].event_id == "m"
    assert parse_tainted(body(message))[0].event_id is None


def test_a_taint_under_another_envelope_type_is_a_taint_still() -> None:
    assert tainted({"type": "com.dats.artifact.tainted", "data": {"artifact_id": "a"}}).artifact_ids == ("a",)


# ------------------------------------------------------------------------------------- what a failure is known by


@pytest.mark.parametrize(
    ("message", "event_type", "names"),
    [
        ({"id": "7", "data": data(content="")}, "task.validated", Names("art-789", "default", "7")),
        ({"id": "7", "data": data(tenant_id="acme", content=3)}, "task.validated", Names("art-789", "acme", "7")),
        ({"data": data(metadata={"tenant_id": "acme"})}, "task.validated", Names("art-789", "acme", "m")),
        ({"data": data(metadata="text")}, "task.validated", Names("art-789", None, "m")),
        ({"data": data(tenant_id=3)}, "task.validated", Names("art-789", None, "m")),
        ({"id": "7", "data": data(artifact_id="a\nb")}, "task.validated", Names(None, "default", "7")),
        ({"id": 7, "data": data(time="noon")}, "task.validated", Names("art-789", "default", "m")),
        ({"id": "x" * 257, "data": "text"}, "task.validated", Names(None, None, "m")),
        ({"id": "7", "data": {"artifact_id": "a", "reason": 3}}, "artifact.tainted", Names("a", None, "7")),
        ({"id": "7", "data": {"artifact_ids": ["a", 3]}}, "artifact.tainted", Names("a", None, "7")),
        ({"id": "7", "data": {"artifact_ids": ["a", "b"]}}, "artifact.tainted", Names(None, None, "7")),
        ([], "task.validated", Names(None, None, "m")),
    ],
)
def test_what_can_be_read_of_a_failed_message_names_it(message: Any, event_type: str, names: Names) -> None:
    assert names_in(body(message), event_type=event_type, message_id="m") == names


def test_a_message_that_is_not_json_is_named_by_its_message_id() -> None:
    assert names_in(b"\xff{", event_type="task.validated", message_id="m") == Names(event_id="m")


# -------------------------------------------------------------------------------------------------------- build


def test_what_we_publish_has_the_fields_of_the_contract() -> None:
    completed = build_completed(event_id="e1", at=NOON, artifact_id="a", chunks=3, version=5, generation=7)
    assert completed == {
        "specversion": "1.0",
        "id": "e1",
        "source": "rag-service",
        "type": "embedding.completed",
        "time": "2026-01-31T12:00:00.000000Z",
        "data": {"artifact_id": "a", "chunks": 3, "status": "indexed", "version": 5, "generation": 7},
    }
    invalidated = build_invalidated(
        event_id="e2", at=NOON, artifact_ids=("a", "b"), tenant_id="t", cascade_id="c", chunks_removed=9, through=11
    )
    assert invalidated["type"] == "embedding.invalidated"
    assert invalidated["data"] == {
        "artifact_ids": ["a", "b"],
        "tenant_id": "t",
        "cascade_id": "c",
        "chunks_removed": 9,
        "through": 11,
    }
    failed = build_failed(
        event_id="e3",
        at=NOON,
        artifact_id=None,
        tenant_id="t",
        failed_event_id="7",
        reason="body: not JSON",
        attempts=1,
    )
    assert failed["data"] == {
        "artifact_id": None,
        "tenant_id": "t",
        "event_id": "7",
        "reason": "body: not JSON",
        "attempts": 1,
    }
    quarantined = build_quarantined(event_id="e4", at=NOON, key=ArtifactKey("t", "a"), version=5, reason="why")
    assert quarantined["data"] == {"artifact_id": "a", "tenant_id": "t", "version": 5, "reason": "why"}


def test_a_command_reads_back_as_the_event_it_asks_for() -> None:
    metadata = ArtifactMetadata.model_validate(
        {"project_id": "p", "tags": ["x"], "scope": "user", "user_id": "u", "verified": False, "k": {"z": 1.5}}
    )
    command = build_embed_command(
        event_id="c1", at=NOON + 1, artifact_id="a/b", content=SECRET, metadata=metadata, tenant_id="acme"
    )
    event = validated(command, event_type="rag.embed")
    assert event == Validated(
        ArtifactKey("acme", "a/b"),
        SECRET,
        metadata.to_source(),
        EventTime(NOON + 1, own_clock=True),
        "rag-service/c1",
    )
