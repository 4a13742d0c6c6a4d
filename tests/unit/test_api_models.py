"""HTTP models: spec 1's own messages are taken, and every bad request is refused with the field's name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dats_common.contracts.answers import AnswerRequest
from dats_common.contracts.api import (
    BatchInvalidateRequest,
    EmbedRequest,
    FieldProblem,
    QueryRequest,
    QueryResponse,
    SearchMode,
    SourceReference,
    field_problems,
)
from dats_common.domain.model import Scope

SPEC_1_QUERY = {
    "query": "How to implement fibonacci in Python?",
    "project_id": "proj-123",
    "domain": "code-general",
    "max_tokens": 2000,
    "search_mode": "hybrid",
    "filters": {"verified_only": True, "exclude_tainted": True},
}
SPEC_1_EMBED = {
    "content": "def fibonacci(n: int) -> int:\n    ...",
    "metadata": {
        "artifact_id": "art-789",
        "provenance_id": "prov-012",
        "task_id": "task-345",
        "project_id": "proj-123",
        "domain": "code-general",
        "doc_type": "output",
        "verified": True,
    },
}
SPEC_1_BATCH = {
    "artifact_ids": ["art-789", "art-790", "art-791"],
    "reason": "upstream_taint",
    "cascade_id": "cascade-123",
}


def refused(model: type[BaseModel], request: Any) -> list[FieldProblem]:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(request)
    problems = field_problems(caught.value.errors())
    assert "hunter2" not in repr(problems)
    assert "hunter2" not in str(caught.value)
    return problems


def query(**changes: Any) -> dict[str, Any]:
    return {"query": "hello function", **changes}


def embed(**metadata: Any) -> dict[str, Any]:
    return {"content": "hunter2 hunter2", "metadata": {"artifact_id": "a", "project_id": "p", **metadata}}


# -------------------------------------------------------------------------------------------------------- query


def test_the_requests_of_spec_1_are_taken() -> None:
    request = QueryRequest.model_validate(SPEC_1_QUERY)
    assert (request.project_id, request.max_tokens, request.search_mode) == ("proj-123", 2000, SearchMode.HYBRID)
    embedding = EmbedRequest.model_validate(SPEC_1_EMBED)
    assert embedding.metadata.artifact_id == "art-789"
    assert embedding.metadata.to_source().provenance_id == "prov-012"
    assert BatchInvalidateRequest.model_validate(SPEC_1_BATCH).cascade_id == "cascade-123"


def test_a_query_alone_has_the_defaults_of_spec_1() -> None:
    request = QueryRequest.model_validate(query())
    assert (request.max_tokens, request.search_mode, request.top_k) == (2000, SearchMode.HYBRID, 10)
    assert request.model_fields_set == {"query"}


@pytest.mark.parametrize(
    "filters", [None, {}, {"tags": ["a"]}, {"verified_only": None}, {"exclude_tainted": True}], ids=str
)
def test_filters_are_verified_only_unless_told_otherwise(filters: Any) -> None:
    found = QueryRequest.model_validate(query(filters=filters)).filters
    assert found.verified_only is True
    assert found.exclude_tainted is True


def test_unverified_content_can_be_asked_for() -> None:
    assert QueryRequest.model_validate(query(filters={"verified_only": False})).filters.verified_only is False


def test_one_doc_type_is_a_list_of_one() -> None:
    assert QueryRequest.model_validate(query(filters={"doc_type": "output"})).filters.doc_type == ["output"]
    assert QueryRequest.model_validate(query(filters={"doc_type": ["a", "b"]})).filters.doc_type == ["a", "b"]


def test_withdrawn_content_cannot_be_asked_for() -> None:
    [problem] = refused(QueryRequest, query(filters={"exclude_tainted": False}))
    assert problem.field == "filters.exclude_tainted"
    assert "withdrawn content is never served" in problem.message


def test_an_unknown_filter_is_refused_by_name() -> None:
    assert refused(QueryRequest, query(filters={"projectid": "x"})) == [
        FieldProblem(field="filters.projectid", message="is not a known field")
    ]


def test_an_unknown_search_mode_is_refused_with_the_known_ones() -> None:
    [problem] = refused(QueryRequest, query(search_mode="psychic"))
    assert problem.field == "search_mode"
    assert all(mode.value in problem.message for mode in SearchMode)


@pytest.mark.parametrize(
    ("request_body", "field"),
    [
        ({}, "query"),
        (query(query=""), "query"),
        (query(query=" \n "), "query"),
        (query(query="x" * 4097), "query"),
        (query(query="a\0b"), "query"),
        (query(query="a\ud800b"), "query"),
        (query(query=3), "query"),
        (query(query=["hunter2"]), "query"),
        (query(max_tokens=99), "max_tokens"),
        (query(max_tokens=10_001), "max_tokens"),
        (query(max_tokens="2000"), "max_tokens"),
        (query(max_tokens=True), "max_tokens"),
        (query(max_tokens=float("nan")), "max_tokens"),
        (query(max_tokens=200.5), "max_tokens"),
        (query(top_k=0), "top_k"),
        (query(top_k=101), "top_k"),
        (query(search_mode=1), "search_mode"),
        (query(project_id=7), "project_id"),
        (query(project_id=""), "project_id"),
        (query(tenant_id="a\0"), "tenant_id"),
        (query(user_tags="a"), "user_tags"),
        (query(user_tags=[None]), "user_tags[0]"),
        (query(filters="verified"), "filters"),
        (query(filters={"verified_only": "yes"}), "filters.verified_only"),
        (query(filters={"tags": "a"}), "filters.tags"),
        (query(filters={"tags": []}), "filters.tags"),
        (query(filters={"doc_type": 3}), "filters.doc_type"),
        (query(filters={"doc_type": []}), "filters.doc_type"),
        (query(filters={"artifact_ids": []}), "filters.artifact_ids"),
        (query(filters={"artifact_ids": ["a"] * 1001}), "filters.artifact_ids"),
        (query(filters={"artifact_ids": ["ok", "x" * 300]}), "filters.artifact_ids[1]"),
        (query(projectid="x"), "projectid"),
    ],
)
def test_a_query_that_breaks_the_contract_is_refused_with_the_field(request_body: Any, field: str) -> None:
    assert [problem.field for problem in refused(QueryRequest, request_body)] == [field]


def test_the_longest_query_is_taken() -> None:
    assert len(QueryRequest.model_validate(query(query="x" * 4096)).query) == 4096


# -------------------------------------------------------------------------------------------------------- embed


def test_spec_1s_own_test_document_is_taken_without_provenance() -> None:
    request = EmbedRequest.model_validate(
        {
            "content": "def hello(): return 'world'",
            "metadata": {"artifact_id": "test-123", "project_id": "proj-1"},
        }
    )
    source = request.metadata.to_source()
    assert (source.provenance_id, source.verified, source.scope) == ("", True, Scope.PROJECT)


@pytest.mark.parametrize(
    ("request_body", "field"),
    [
        ({"metadata": embed()["metadata"]}, "content"),
        ({**embed(), "content": "too short"}, "content"),
        ({**embed(), "content": " " * 50}, "content"),
        ({**embed(), "content": "é" * 600_000}, "content"),
        ({**embed(), "content": "x" * 1_000_001}, "content"),
        ({**embed(), "content": "hunter2 hunter2\0"}, "content"),
        ({**embed(), "content": "hunter2 hunter2\ud800"}, "content"),
        ({**embed(), "content": 12345678901}, "content"),
        ({"content": "hunter2 hunter2"}, "metadata"),
        ({"content": "hunter2 hunter2", "metadata": {"project_id": "p"}}, "metadata.artifact_id"),
        ({"content": "hunter2 hunter2", "metadata": {"artifact_id": "a"}}, "metadata.project_id"),
        (embed(artifact_id="x" * 300), "metadata.artifact_id"),
        (embed(artifact_id=""), "metadata.artifact_id"),
        (embed(artifact_id=5), "metadata.artifact_id"),
        (embed(artifact_id="a\0b"), "metadata.artifact_id"),
        (embed(verified="true"), "metadata.verified"),
        (embed(scope="user"), "metadata"),
        (embed(score=float("nan")), "metadata"),
        (embed(blob="hunter2" * 5000), "metadata"),
        ({**embed(), "artifact_id": "a"}, "artifact_id"),
    ],
)
def test_an_embed_that_breaks_the_contract_is_refused_with_the_field(request_body: Any, field: str) -> None:
    assert [problem.field for problem in refused(EmbedRequest, request_body)] == [field]


def test_an_id_with_spaces_and_slashes_is_an_id() -> None:
    assert EmbedRequest.model_validate(embed(artifact_id="a b/c/../d")).metadata.artifact_id == "a b/c/../d"


# --------------------------------------------------------------------------------------------------- invalidate


def test_a_batch_of_ten_thousand_ids_is_taken_and_one_more_is_not() -> None:
    ids = [f"a{n}" for n in range(10_000)]
    assert len(BatchInvalidateRequest.model_validate({"artifact_ids": ids}).artifact_ids) == 10_000
    [problem] = refused(BatchInvalidateRequest, {"artifact_ids": [*ids, "one more"]})
    assert problem.field == "artifact_ids"
    assert "10000" in problem.message


def test_an_id_given_twice_is_invalidated_once() -> None:
    assert BatchInvalidateRequest.model_validate({"artifact_ids": ["b", "a", "b"]}).artifact_ids == ["b", "a"]


@pytest.mark.parametrize(
    ("request_body", "field"),
    [
        ({}, "artifact_ids"),
        ({"artifact_ids": []}, "artifact_ids"),
        ({"artifact_ids": "a"}, "artifact_ids"),
        ({"artifact_ids": ["a", 3]}, "artifact_ids[1]"),
        ({"artifact_ids": ["a"], "cascade_id": 3}, "cascade_id"),
        ({"artifact_ids": ["a"], "because": "x"}, "because"),
    ],
)
def test_a_batch_that_breaks_the_contract_is_refused_with_the_field(request_body: Any, field: str) -> None:
    assert [problem.field for problem in refused(BatchInvalidateRequest, request_body)] == [field]


# -------------------------------------------------------------------------------------------------------- answers


def test_a_source_shows_the_four_fields_of_spec_1_first() -> None:
    assert list(SourceReference.model_fields)[:4] == ["artifact_id", "provenance_id", "relevance_score", "snippet"]


def test_an_answer_reads_as_a_dict_too() -> None:
    answer = QueryResponse(
        id="query-1",
        query="q",
        context="## Previous",
        sources=[
            SourceReference(
                artifact_id="art-123",
                provenance_id="prov-456",
                relevance_score=0.92,
                snippet="def",
                source_id="d:0",
                chunk_index=0,
            )
        ],
        tokens_used=15,
        search_mode=SearchMode.HYBRID,
        metadata={"vector_results": 3},
    )
    assert answer["context"] == "## Previous"
    assert answer["sources"][0]["artifact_id"] == "art-123"
    assert answer["search_mode"] == "hybrid"
    assert answer.get("tokens_used") == 15
    assert answer.get("nothing", 7) == 7
    assert "sources" in answer
    assert "model_dump" not in answer
    spec_1 = ["id", "query", "context", "sources", "tokens_used", "search_mode", "metadata"]
    assert list(answer) == [*spec_1, "reranked", "rerank_reason"]
    assert len(answer) == 9
    assert dict(answer)["metadata"] == {"vector_results": 3}
    with pytest.raises(KeyError):
        answer["model_dump"]


def test_what_a_newer_service_adds_is_ignored() -> None:
    answer = QueryResponse.model_validate(
        {
            "id": "1",
            "query": "q",
            "context": "",
            "sources": [],
            "tokens_used": 0,
            "search_mode": "vector",
            "novelty": 1,
        }
    )
    assert "novelty" not in answer


def test_the_path_of_a_web_framework_is_shown_without_its_first_step() -> None:
    errors = [{"loc": ("body", "filters", "tags", 0), "type": "missing", "msg": "Field required"}]
    assert field_problems(errors) == [FieldProblem(field="filters.tags[0]", message="is required")]


def test_an_answer_by_a_model_without_a_name_is_refused_and_null_is_the_default() -> None:
    (problem,) = refused(AnswerRequest, query(model=""))
    assert problem.field == "model"
    assert AnswerRequest.model_validate(query(model=None)).model is None
