"""The FastAPI application: pure assembly."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from services.query import answer_routes, routes
from services.query.gate import Concurrency, Gate, RateLimits
from services.query.identity import Authenticator
from services.query.limits import BodyLimit, HttpLimits, RequestCount, RequestId
from services.query.openapi import routed_app
from services.query.problems import install_problems
from services.query.services import QueryServices


def build_app(
    services: QueryServices, *, authenticator: Authenticator, rates: RateLimits, limits: HttpLimits
) -> FastAPI:
    """The app over services that somebody else opens and closes.

    Around the routes, from the outside in: count, bound the number in hand, ask who is calling, trace, read the body. A
    stranger's body is never read, and what a stranger sends is in no trace.
    """
    app = routed_app()
    app.state.services = services
    install_problems(app)
    app.add_middleware(BodyLimit, limit_bytes=limits.body_bytes, timeout_s=limits.body_timeout_s)
    if services.trace_requests is not None:
        app.add_middleware(services.trace_requests)
    app.add_middleware(Gate, authenticator=authenticator, rates=rates)
    app.add_middleware(Concurrency, most=limits.concurrent_requests)
    paths = [*_paths(routes.router), *_paths(answer_routes.router), "/metrics"]
    app.add_middleware(RequestCount, requests=services.metrics.http_requests, routes=paths)
    services.metrics.declare_routes(paths)
    app.add_middleware(RequestId)
    return app


def _paths(router: APIRouter) -> list[str]:
    return [route.path for route in router.routes if isinstance(route, APIRoute)]
