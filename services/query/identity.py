"""Who is calling: an API key or a token becomes a `Caller`; nothing in a request's body ever does."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from dats_common.domain.access import LAPTOP_CALLER, Caller
from dats_common.domain.keys import PlainKey, read_key
from dats_common.errors import Unauthenticated
from dats_common.ports import KeyStore, TokenVerifier
from dats_common.records import StoredKey
from dats_common.telemetry.guard import noting_failure
from dats_common.telemetry.logs import log
from dats_common.telemetry.replica_metrics import QueryMetrics
from services.query.services import Errands

_SAY_AGAIN_S = 60.0
_MOST_SUBJECTS = 1000

Headers = Sequence[tuple[bytes, bytes]]


class Authenticator(Protocol):
    """From a request's headers to its caller."""

    async def identify(self, headers: Headers) -> Caller | None:
        """The caller, or None when no credentials were sent.

        Raises: Unauthenticated: they are not good. LedgerUnavailable: nobody can tell.
        """


class Everyone:
    """Authentication is off: everyone is the laptop's caller, and credentials are not looked at."""

    async def identify(self, headers: Headers) -> Caller | None:
        return LAPTOP_CALLER


class Seldom:
    """Lets each subject through once in `interval_s`, and holds a bounded number of them."""

    def __init__(self, *, interval_s: float, clock: Callable[[], float]) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._last: dict[Hashable, float] = {}

    def allows(self, *subject: Hashable) -> bool:
        """Whether it is the subject's turn; if so, its next one is `interval_s` away."""
        now = self._clock()
        if now - self._last.get(subject, float("-inf")) < self._interval_s:
            return False
        if len(self._last) >= _MOST_SUBJECTS:
            self._last = {each: at for each, at in self._last.items() if now - at < self._interval_s}
            if len(self._last) >= _MOST_SUBJECTS:
                return False
        self._last[subject] = now
        return True


class Credentials:
    """Keys are looked up in the ledger on every request: one that is revoked is refused from then on, everywhere."""

    def __init__(
        self,
        *,
        keys: KeyStore,
        tokens: TokenVerifier | None,
        errands: Errands,
        metrics: QueryMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._errands = errands
        self._metrics = metrics
        self._noted = Seldom(interval_s=_SAY_AGAIN_S, clock=clock)
        self._touched = Seldom(interval_s=_SAY_AGAIN_S, clock=clock)

    async def identify(self, headers: Headers) -> Caller | None:
        credential = _credential(headers)
        if credential is None:
            return None
        text, is_bearer = credential
        key = read_key(text)
        if key is not None:
            return await self._holder_of(key)
        if self._tokens is None or not is_bearer or text.startswith("drk_"):
            self._refuse("malformed")
            raise Unauthenticated("this is no API key" + (" and no token" if self._tokens and is_bearer else ""))
        try:
            return self._tokens.verify(text)
        except Unauthenticated:
            self._refuse("token")
            raise

    async def _holder_of(self, key: PlainKey) -> Caller:
        with noting_failure(self._metrics, "credentials"):
            stored = await self._keys.find(key.key_id)
        if not key.fits(stored.secret_hash if stored else None):
            self._refuse("wrong_secret" if stored else "unknown_key", known_key=stored.key_id if stored else None)
            raise Unauthenticated("the API key is not good")
        assert stored is not None  # noqa: S101  `fits` says so
        if stored.state != "good":
            self._refuse(stored.state, known_key=stored.key_id)
            raise Unauthenticated(f"the API key is {stored.state}")
        if self._touched.allows(stored.key_id):
            self._errands.run("touch", lambda: self._keys.touch(stored.key_id))
        return _caller(stored)

    def _refuse(self, reason: str, *, known_key: str | None = None) -> None:
        """Count it; log and audit it seldom. Only ids of keys that exist are named: others are the sender's words."""
        self._metrics.refused_credentials.labels(reason=reason).inc()
        if not self._noted.allows(known_key, reason):
            return
        log("query").warning("credentials_refused", reason=reason, **({"key_id": known_key} if known_key else {}))
        if known_key:
            self._errands.run("audit", lambda: self._keys.record_refusal(known_key, reason=reason))


def _credential(headers: Headers) -> tuple[str, bool] | None:
    """What was sent, and whether as a bearer. Raises: Unauthenticated: two different ones, or another scheme."""
    found: set[str] = set()
    is_bearer = False
    for name, value in headers:
        text = value.decode("latin-1").strip()
        if name == b"x-api-key":
            found.add(text)
        elif name == b"authorization":
            scheme, _, rest = text.partition(" ")
            if scheme.lower() != "bearer":
                raise Unauthenticated("of Authorization only Bearer is understood")
            found.add(rest.strip())
            is_bearer = True
    if len(found) > 1:
        raise Unauthenticated("two different credentials were sent; send one")
    return (found.pop(), is_bearer) if found else None


def _caller(key: StoredKey) -> Caller:
    return Caller(
        actor=f"key:{key.key_id}",
        tenant_ids=key.tenant_ids,
        roles=key.roles,
        user_id=key.user_id,
        project_ids=key.project_ids,
        tags=key.tags,
        requests_per_minute=key.requests_per_minute,
    )
