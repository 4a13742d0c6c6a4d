"""The FastAPI application: pure assembly."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from dats_common.contracts.api import Problem
from services.query import answer_routes, routes
from services.query.gate import OPEN_PATHS, Concurrency, Gate, RateLimits
from services.query.identity import Authenticator
from services.query.limits import BodyLimit, HttpLimits, RequestCount, RequestId
from services.query.problems import install_problems
from services.query.services import QueryServices

_SECURITY_SCHEMES = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "made by `dats-rag keys create`"},
    "Bearer": {"type": "http", "scheme": "bearer", "description": "an API key, or a token of the identity provider"},
}


def build_app(
    services: QueryServices, *, authenticator: Authenticator, rates: RateLimits, limits: HttpLimits
) -> FastAPI:
    """The app over services that somebody else opens and closes.

    Around the routes, from the outside in: count, bound the number in hand, ask who is calling, trace, read the body. A
    stranger's body is never read, and what a stranger sends is in no trace.
    """
    app = FastAPI(
        title="DATS RAG",
        version=version("dats-rag"),
        description="Context retrieval and embedding management. Errors are RFC 9457 problem documents.",
        redirect_slashes=False,
        # The framework's own spans would carry paths and messages of errors to whatever a host program has set up.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.services = services
    app.include_router(routes.router)
    app.include_router(answer_routes.router)
    app.add_api_route("/metrics", routes.metrics, methods=["GET"], include_in_schema=False)
    install_problems(app)
    app.add_middleware(BodyLimit, limit_bytes=limits.body_bytes, timeout_s=limits.body_timeout_s)
    if services.trace_requests is not None:
        app.add_middleware(services.trace_requests)
    app.add_middleware(Gate, authenticator=authenticator, rates=rates)
    app.add_middleware(Concurrency, most=limits.concurrent_requests)
    app.add_middleware(RequestCount, requests=services.metrics.http_requests)
    services.metrics.declare_routes([*_paths(routes.router), *_paths(answer_routes.router), "/metrics"])
    app.add_middleware(RequestId)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _paths(router: APIRouter) -> list[str]:
    return [route.path for route in router.routes if isinstance(route, APIRoute)]


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**problem.pop("$defs"), "Problem": problem}
        document["components"]["securitySchemes"] = _SECURITY_SCHEMES
        for path, operations in document["paths"].items():
            for operation in operations.values():
                operation["security"] = [] if path in OPEN_PATHS else [{name: []} for name in _SECURITY_SCHEMES]
        app.openapi_schema = document
    return app.openapi_schema
