"""Logs as past-tense events with allow-listed fields: content, queries and secrets cannot get in by accident."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any

import structlog

from dats_common.trace_context import current_trace

ALLOWED_KEYS = frozenset(
    {
        "event", "level", "timestamp", "service", "component", "error", "error_type", "detail", "reason", "url", "host",
        "port", "pid", "path", "queue", "verdict", "attempt", "attempts", "artifact_count", "chunks", "generation",
        "epoch", "writer_id", "event_id", "request_id", "route", "status", "mode", "seconds", "waited_s", "count",
        "model", "backend", "collection", "signal", "how", "removed", "role", "exit_code", "version", "actor", "key_id",
        "tenant_id", "cascade_id", "answer_id", "action", "confidence", "citations", "refused", "trace_id", "span_id",
    }
)  # fmt: skip


def _only_allowed(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in fields.items() if key in ALLOWED_KEYS}


def _in_its_trace(_logger: object, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if (current := current_trace()) is not None:
        fields["trace_id"], fields["span_id"] = current.trace_id, current.span_id
    return fields


class _AsEvent(logging.Formatter):
    """A library's line as an event, so that every line of a process is JSON."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "event": "library_warned",
            "level": record.levelname.lower(),
            "component": record.name,
            "detail": super().format(record),
            "timestamp": datetime.fromtimestamp(record.created, tz=UTC).isoformat().replace("+00:00", "Z"),
        }
        return json.dumps(_in_its_trace(None, "", fields), sort_keys=True)


def configure_logs(*, service: str, level: str = "INFO") -> None:
    """Once per process, from its entry point: JSON lines on stderr, or a readable form on a terminal."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            _in_its_trace,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _only_allowed,
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(sort_keys=True),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.clear_contextvars()
    # Libraries speak only when something is wrong; their debug output may hold content.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s", stream=sys.stderr)
    if not terminal:
        for handler in logging.getLogger().handlers:
            handler.setFormatter(_AsEvent())
    for chatty in ("aio_pika", "aiormq", "httpx", "qdrant_client"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    log(service).info("process_started")


def log(service: str) -> Any:
    """A logger that names its service."""
    return structlog.get_logger(service=service)
