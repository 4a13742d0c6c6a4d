"""The rim: the client's errors as ours, and what counts as written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dats_common.errors import ConfigurationError, IndexUnavailable, InvalidInput

if TYPE_CHECKING:
    from qdrant_client import models


def strong_ordering() -> models.WriteOrdering:
    from qdrant_client import models

    return models.WriteOrdering.STRONG


def require_completed(result: models.UpdateResult) -> None:
    """`acknowledged` and `wait_timeout` come as successes, but nobody may call such a write done.

    Raises: IndexUnavailable.
    """
    from qdrant_client import models

    if result.status != models.UpdateStatus.COMPLETED:
        raise IndexUnavailable(f"Qdrant did not confirm a write: {result.status}")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """The client's errors as ours, once.

    Raises: InvalidInput; ConfigurationError: the credentials are refused; IndexUnavailable: everything else.
    """
    from grpc import StatusCode
    from grpc.aio import AioRpcError
    from qdrant_client.common.client_exceptions import QdrantException

    try:
        yield
    except AioRpcError as error:
        code, details = error.code(), error.details()
        if code is StatusCode.INVALID_ARGUMENT:
            raise InvalidInput(f"Qdrant refused the request: {details}") from error
        if code in (StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED):
            raise ConfigurationError(f"Qdrant refused our credentials ({details}): check QDRANT_API_KEY") from error
        raise IndexUnavailable(f"Qdrant: {code.name}: {details}") from error
    except (QdrantException, ValueError) as error:  # ValueError: an answer that the client does not know.
        raise IndexUnavailable(f"Qdrant: {error}") from error
