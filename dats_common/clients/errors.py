"""What a RAG client raises.

RAGError
├── RAGUnavailable      away for now (no connection, 502, 503): try again later
├── RAGTooMany          429: try again after `retry_after_s`
├── RAGTimeout          no answer within the timeout, or 504
├── RAGForbidden        403: the credentials do not allow it
│   └── RAGUnauthenticated  401: the credentials are missing or not good
├── RAGInvalid          400, 408, 413, 422, or a request that cannot be sent: `problem.errors` names the fields
├── RAGNotFound         404
└── RAGUnexpected       any other status, or an answer that breaks the contract
"""

from __future__ import annotations

from dats_common.contracts.api import Problem


class RAGError(Exception):
    """Base of all errors of the RAG clients.

    Attributes:
        status: the HTTP status, or None without an answer.
        problem: the service's own words (RFC 9457), if it said any.
        retry_after_s: seconds after which the service asks to try again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        problem: Problem | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem
        self.retry_after_s = retry_after_s


class RAGUnavailable(RAGError):
    """The service, or something it stands on, is away for now."""


class RAGTooMany(RAGError):
    """The service takes no more for now."""


class RAGTimeout(RAGError):
    """No answer in time. A write may have been done."""


class RAGForbidden(RAGError):
    """The credentials do not allow this."""


class RAGUnauthenticated(RAGForbidden):
    """The credentials are missing, revoked, expired or wrong."""


class RAGInvalid(RAGError):
    """The request breaks the contract; the same request will fail again."""


class RAGNotFound(RAGError):
    """There is no such thing, or none that the caller may know of."""


class RAGUnexpected(RAGError):
    """The answer is none that the contract knows."""
