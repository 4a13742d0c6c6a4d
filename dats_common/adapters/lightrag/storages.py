"""The storage classes that LightRAG is given. Importing this module imports LightRAG: only `indexer` does, when opened.

They hold a micro-batch in memory and are emptied after it: the ledger keeps source, chunks and pending generations, so
rows of LightRAG's own would be a second truth that no epoch fences.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from lightrag import kg
from lightrag.base import (
    CURSOR_END,
    CURSOR_START,
    BaseGraphStorage,
    BaseKVStorage,
    BaseVectorStorage,
    CursorAfter,
    CursorPosition,
    DocProcessingStatus,
    DocSchedulingRecord,
    DocStatus,
    DocStatusPage,
    DocStatusStorage,
    SourceAbsent,
    SourceConflict,
    SourceUnique,
)

from dats_common.adapters.lightrag.batch import MicroBatch
from dats_common.errors import ConfigurationError

_Class = TypeVar("_Class", bound=type)


async def _refused(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("not part of the path that indexes documents")


def _refusing_the_rest(cls: _Class) -> _Class:
    """Let every abstract method that the class leaves open refuse: LightRAG's interfaces are wider than our use."""
    for name in cls.__abstractmethods__:  # type: ignore[attr-defined]
        setattr(cls, name, _refused)
    abc.update_abstractmethods(cls)
    return cls


@_refusing_the_rest
@dataclass
class DatsKVStorage(BaseKVStorage):  # type: ignore[misc]
    """Rows of one namespace, in memory."""

    supports_strict_point_reads: ClassVar[bool] = True
    rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    async def index_done_callback(self) -> None:
        """Nothing waits to be written."""

    async def drop(self) -> dict[str, str]:
        """Forget all rows."""
        self.rows.clear()
        return {"status": "success", "message": "data dropped"}

    async def get_by_id(self, id: str) -> dict[str, Any] | None:  # noqa: A002 - LightRAG's name
        """A copy of the row."""
        row = self.rows.get(id)
        return None if row is None else {**row, "_id": id}

    get_by_id_strict = get_by_id

    async def get_by_ids(self, ids: Sequence[str]) -> list[dict[str, Any] | None]:
        """Rows in the order of `ids`."""
        return [await self.get_by_id(each) for each in ids]

    async def filter_keys(self, keys: set[str]) -> set[str]:
        """The keys that have no row."""
        return set(keys) - self.rows.keys()

    async def upsert(self, data: dict[str, dict[str, Any]]) -> None:
        """Replace rows."""
        self.rows.update(data)

    async def delete(self, ids: Sequence[str]) -> None:
        """Forget rows."""
        for each in ids:
            self.rows.pop(each, None)

    async def is_empty(self) -> bool:
        """Whether there are no rows."""
        return not self.rows


@_refusing_the_rest
@dataclass
class DatsDocStatusStorage(DocStatusStorage):  # type: ignore[misc]
    """Where each document of the micro-batch stands, in memory."""

    supports_strict_point_reads: ClassVar[bool] = True
    rows: dict[str, dict[str, Any]] = field(default_factory=dict, init=False)

    index_done_callback = DatsKVStorage.index_done_callback
    drop = DatsKVStorage.drop
    get_by_id = DatsKVStorage.get_by_id
    get_by_id_strict = DatsKVStorage.get_by_id
    get_by_ids = DatsKVStorage.get_by_ids
    filter_keys = DatsKVStorage.filter_keys
    delete = DatsKVStorage.delete
    is_empty = DatsKVStorage.is_empty

    async def upsert(self, data: dict[str, dict[str, Any]]) -> None:
        """Replace rows."""
        for key, row in data.items():
            self.rows[key] = {"chunks_list": [], **row, "status": DocStatus(row["status"])}

    async def count_docs_by_statuses(self, statuses: Sequence[DocStatus], *, strict: bool = True) -> int:
        """Number of documents in these states."""
        return sum(row["status"] in statuses for row in self.rows.values())

    async def get_docs_by_statuses(
        self, statuses: Sequence[DocStatus], strict: bool = False
    ) -> dict[str, DocProcessingStatus]:
        """Full records of the documents in these states."""
        return {key: _full(row) for key, row in self.rows.items() if row["status"] in statuses}

    async def get_docs_by_statuses_page(
        self,
        statuses: Sequence[DocStatus],
        *,
        limit: int,
        position: CursorPosition = CURSOR_START,
        strict: bool = False,
    ) -> DocStatusPage:
        """One page of the documents in these states, by time and id."""
        if position is CURSOR_END:
            return DocStatusPage({}, CURSOR_END)
        after = tuple(json.loads(position.opaque)) if isinstance(position, CursorAfter) else ("", "")
        places = sorted(
            (row["created_at"], key)
            for key, row in self.rows.items()
            if row["status"] in statuses and (row["created_at"], key) > after
        )
        page = places[:limit]
        records = {key: self._scheduling_record_from_raw(key, self.rows[key]) for _, key in page}
        return DocStatusPage(records, CursorAfter(json.dumps(page[-1])) if len(places) > limit else CURSOR_END)

    async def get_docs_by_ids(self, doc_ids: Sequence[str], *, strict: bool = False) -> dict[str, DocSchedulingRecord]:
        """Scheduling records of those that exist."""
        known = [key for key in doc_ids if key in self.rows]
        return {key: self._scheduling_record_from_raw(key, self.rows[key]) for key in known}

    async def get_full_docs_by_ids(
        self, doc_ids: Sequence[str], *, strict: bool = False
    ) -> dict[str, DocProcessingStatus]:
        """Full records of those that exist."""
        return {key: _full(self.rows[key]) for key in doc_ids if key in self.rows}

    async def get_doc_by_content_hash(
        self, content_hash: str, *, exclude_doc_id: str | None = None
    ) -> tuple[str, dict[str, Any]] | None:
        """No document is a copy of another: what LightRAG sees as content is the document's unique name."""
        return None

    async def resolve_doc_source_strict(
        self, canonical_source_key: str
    ) -> SourceAbsent | SourceUnique | SourceConflict:
        """The document with this file path, which is its id."""
        row = self.rows.get(canonical_source_key)
        if row is None:
            return SourceAbsent()
        record = self._scheduling_record_from_raw(canonical_source_key, row)
        return SourceUnique(doc_id=canonical_source_key, doc=record)


def _full(row: dict[str, Any]) -> DocProcessingStatus:
    return DocProcessingStatus.from_stored(row)


@_refusing_the_rest
@dataclass
class DatsVectorStorage(BaseVectorStorage):  # type: ignore[misc]
    """Hands the chunks of a document to the micro-batch, which embeds and stores them in groups."""

    batch: MicroBatch | None = field(default=None, init=False)

    async def upsert(self, data: dict[str, dict[str, Any]]) -> None:
        """Take over the chunks of one document, all in one call."""
        if self.batch is None or not data:
            return
        rows = list(data.values())
        self.batch.add(rows[0]["full_doc_id"], [row["source_chunk"] for row in rows])

    async def index_done_callback(self) -> None:
        """Wait for the groups that carry what was handed over."""
        if self.batch is not None:
            await self.batch.commit()

    async def drop(self) -> dict[str, str]:
        """Nothing is kept here."""
        return {"status": "success", "message": "data dropped"}


@_refusing_the_rest
@dataclass
class DatsGraphStorage(BaseGraphStorage):  # type: ignore[misc]
    """The graph lane is off: an empty graph that takes nothing."""

    async def index_done_callback(self) -> None:
        """Nothing waits to be written."""

    async def drop(self) -> dict[str, str]:
        """Nothing is kept here."""
        return {"status": "success", "message": "data dropped"}


KINDS = {
    "KV_STORAGE": DatsKVStorage,
    "VECTOR_STORAGE": DatsVectorStorage,
    "GRAPH_STORAGE": DatsGraphStorage,
    "DOC_STATUS_STORAGE": DatsDocStatusStorage,
}


def register() -> None:
    """Make the classes known to LightRAG by name; repeating it is harmless.

    Not a documented plug-in interface: three dictionaries of `lightrag.kg`, as they are in lightrag-hku 1.5.7.
    Raises: ConfigurationError: they are not as expected.
    """
    try:
        for kind, cls in KINDS.items():
            known = kg.STORAGE_IMPLEMENTATIONS[kind]["implementations"]
            if cls.__name__ not in known:
                known.append(cls.__name__)
            kg.STORAGE_ENV_REQUIREMENTS[cls.__name__] = []
            kg.STORAGES[cls.__name__] = __name__
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigurationError("this LightRAG takes no storages of ours; install lightrag-hku==1.5.7") from error
