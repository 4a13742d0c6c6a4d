"""The way in: who is calling, how often, and how many at once. Closed by default: a new route needs credentials."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from enum import Enum

from starlette.types import ASGIApp, Receive, Scope, Send

from dats_common.domain.access import LAPTOP_CALLER, Caller
from dats_common.errors import DatsError, Overloaded, TooManyRequests, Unauthenticated
from services.query.identity import Authenticator
from services.query.problems import response_for

PROBE_PATHS = frozenset({"/api/v1/health/live", "/api/v1/health/ready", "/metrics", "/api/v1/metrics"})
OPEN_PATHS = PROBE_PATHS | {"/api/v1/health", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
"""Without credentials: nothing here shows content, and to strangers health leaves out addresses and reasons."""

_MOST_CALLERS = 10_000


class RateLimits:
    """A bucket for each caller: `requests_per_minute` at once, and as many a minute after that.

    Memory is bounded: of more than 10,000 callers those that were quiet longest are forgotten, with full buckets.
    """

    def __init__(self, *, requests_per_minute: int, clock: Callable[[], float]) -> None:
        self._default = requests_per_minute
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def take(self, caller: Caller) -> None:
        """Count one request. Raises: TooManyRequests: with the seconds until the next one is taken."""
        limit = caller.requests_per_minute or self._default
        each_s = 60.0 / limit
        now = self._clock()
        full_at = max(now, self._full_at.get(caller.actor, now)) + each_s
        over_s = full_at - now - 60.0
        if over_s > 1e-6:  # a fresh bucket holds exactly `limit` requests, whatever the sum of their parts
            raise TooManyRequests(f"{limit} requests a minute are taken from these credentials", retry_after_s=over_s)
        self._full_at[caller.actor] = full_at
        self._full_at.move_to_end(caller.actor)
        if len(self._full_at) > _MOST_CALLERS:
            self._full_at.popitem(last=False)


class Gate:
    """Puts the caller into the request's state, or answers 401 or 429 before a byte of the body is read."""

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator, rates: RateLimits) -> None:
        self._app = app
        self._authenticator = authenticator
        self._rates = rates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = await self._admit(scope)
        except DatsError as error:
            await response_for(error, instance=scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope) -> Caller | None:
        if scope["path"] in PROBE_PATHS:
            return None
        if scope["path"] in OPEN_PATHS:
            return await self._known_or_stranger(scope)
        caller = await self._authenticator.identify(scope["headers"])
        if caller is None:
            raise Unauthenticated("credentials are needed: an API key in X-API-Key, or Authorization: Bearer")
        if caller is not LAPTOP_CALLER:
            self._rates.take(caller)
        return caller

    async def _known_or_stranger(self, scope: Scope) -> Caller | None:
        try:
            return await self._authenticator.identify(scope["headers"])
        except DatsError:  # health must answer also while the ledger, which knows the keys, is away
            return None


class _Lane(Enum):
    """What a place is taken for."""

    WITHDRAWAL = "an artifact is withdrawn"
    PATIENT = "somebody waits for the writer or a model"
    QUICK = "all else"


_PATIENT_PATHS = frozenset({"/api/v1/embed", "/api/v1/answer", "/api/v1/answer/stream"})
_WITHDRAWALS = "/api/v1/embeddings/"


class Concurrency:
    """At most `most` requests in hand; one more is answered 503 at once. Probes and scrapes always get through.

    Requests that wait for the writer or a model, for seconds, leave a quarter of the places to those that do not, if
    there are two or more.
    Withdrawals have places of their own, as many: what must vanish does not queue behind what is to be shown.
    """

    def __init__(self, app: ASGIApp, *, most: int) -> None:
        self._app = app
        self._most = most
        self._most_patient = max(1, most * 3 // 4)
        self._in_hand = Counter[_Lane]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBE_PATHS:
            await self._app(scope, receive, send)
            return
        lane = _lane(scope["path"])
        if full_at := self._full_at(lane):
            error = Overloaded(f"{full_at} requests are in hand already")
            await response_for(error, instance=scope["path"])(scope, receive, send)
            return
        self._in_hand[lane] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._in_hand[lane] -= 1

    def _full_at(self, lane: _Lane) -> int:
        """How many requests stand in the way of one more; 0: none do."""
        if lane is _Lane.WITHDRAWAL:
            return self._most if self._in_hand[lane] >= self._most else 0
        if self._in_hand[_Lane.PATIENT] + self._in_hand[_Lane.QUICK] >= self._most:
            return self._most
        is_full = lane is _Lane.PATIENT and self._in_hand[lane] >= self._most_patient
        return self._most_patient if is_full else 0


def _lane(path: str) -> _Lane:
    if path.startswith(_WITHDRAWALS):
        return _Lane.WITHDRAWAL
    return _Lane.PATIENT if path in _PATIENT_PATHS else _Lane.QUICK
