"""Every error of the service. The first question each one answers: is it worth trying again?

DatsError
├── Refused                 never worth repeating unchanged: a dead letter, a 4xx
│   ├── InvalidInput        breaks the contract (bad JSON, wrong type, too long)
│   ├── Unauthenticated     no credentials, or none that are good: a 401
│   ├── Forbidden           the caller's identity does not allow it
│   └── NotFound
├── Unavailable             worth repeating later: a retry, a 503 with Retry-After
│   ├── LedgerUnavailable
│   │   ├── LoginRefused     the database takes no such login; somebody may be changing it
│   │   └── StorageFailed    its disk is full, or fails: no message is to blame
│   ├── IndexUnavailable
│   ├── EncoderUnavailable
│   ├── RerankerUnavailable  never reaches a caller: answers keep the order of fusion
│   ├── BrokerUnavailable
│   ├── QueueFull           a 429
│   ├── TooManyRequests     a 429: the caller's own limit
│   └── Overloaded          a 503: this replica has its hands full
├── RAGServiceError         what goes wrong with an answer; each is also one of the kinds above or below. Source: spec 2
│   ├── ModelNotAllowedError        Refused, a 400: not in the allowlist
│   ├── TokenBudgetExceededError    InvalidInput, a 422: the prompt does not fit the model's window
│   ├── ContextError                Unavailable: sources fell while the answer was written, each time again
│   │   └── ContextTruncatedError   the model read less than it was sent; such an answer is never shown
│   ├── LLMConnectionError          Unavailable: the model server is away, broke off or sent nonsense
│   │   ├── ResponseCutError        the longest response was reached in mid-answer
│   │   └── ModelUnavailableError   the model is not there, or too large for the server's memory
│   └── LLMTimeoutError             DeadlineExceeded, a 504
├── Fenced                  another writer has taken over: give the messages back, activate again
├── DeadlineExceeded        the caller's time is up: a 504
└── ConfigurationError      stops the start, and says what to do
"""

from __future__ import annotations


class DatsError(Exception):
    """Base of all errors that this service raises on purpose."""


class Refused(DatsError):
    """The same input will fail again."""


class InvalidInput(Refused):
    """The input breaks the contract; the message is safe to show to its sender."""


class Unauthenticated(Refused):
    """No credentials, or none that are good. The message never says which secret, token or claim was close."""


class Forbidden(Refused):
    """The caller's identity does not allow this."""


class NotFound(Refused):
    """There is no such thing, or none that the caller may know of."""


class Unavailable(DatsError):
    """Something we stand on is away for now; the same input may succeed later."""

    retry_after_s: float | None = 5.0
    """When to try again; None: no sooner for waiting."""


class LedgerUnavailable(Unavailable):
    """The SQL ledger did not answer. Nothing may be served without it."""


class LoginRefused(LedgerUnavailable):
    """The database does not let this login in: at the start a mistake, later maybe a password that is being changed."""


class StorageFailed(LedgerUnavailable):
    """The database reads and cannot write: its disk is full, or fails. It answers a ping all the while."""


class IndexUnavailable(Unavailable):
    """The vector index did not answer, or did not confirm a write."""


class EncoderUnavailable(Unavailable):
    """The embedding model did not answer."""


class RerankerUnavailable(Unavailable):
    """The reranker is not loaded, failed, or has its hands full. Answers do without it."""


class BrokerUnavailable(Unavailable):
    """The broker did not take or did not confirm a message."""


class QueueFull(Unavailable):
    """The embedding queue holds `embedding.queue_max_size` messages already."""


class TooManyRequests(Unavailable):
    """The caller has used up its requests for now.

    Attributes:
        retry_after_s: when the next one is taken.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(Unavailable):
    """As many requests as this replica takes are in hand already."""

    retry_after_s: float = 1.0


class Fenced(DatsError):
    """Another writer has raised the epoch since this one became active."""


class DeadlineExceeded(DatsError):
    """The caller's deadline passed before the work was done."""


class RAGServiceError(DatsError):
    """Base of what goes wrong with an answer. The names are spec 2's."""


class ModelNotAllowedError(RAGServiceError, Refused):
    """The requested model is not in the allowlist."""


class TokenBudgetExceededError(RAGServiceError, InvalidInput):
    """Rules, question and the reserve for the response do not fit the model's window."""


class ContextError(RAGServiceError, Unavailable):
    """No context that stands could be given to the model; another try will find another one."""


class ContextTruncatedError(ContextError):
    """The model server evaluated fewer tokens than the prompt has: it cut something off, maybe the rules."""

    retry_after_s = None


class LLMConnectionError(RAGServiceError, Unavailable):
    """The model server is away, busy, broke off, or sent what cannot be read."""


class ResponseCutError(LLMConnectionError):
    """The model was not done when it reached the longest response. Half an answer is not shown."""

    retry_after_s = None


class ModelUnavailableError(LLMConnectionError):
    """The model server has no such model, or cannot load it."""

    retry_after_s = 60.0


class LLMTimeoutError(RAGServiceError, DeadlineExceeded):
    """The model did not answer in time."""


class ConfigurationError(DatsError):
    """The start stops here; the message names the setting and what to do."""
