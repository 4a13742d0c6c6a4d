"""The FastAPI application: pure assembly."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from dats_common.contracts.api import Problem
from services.query import routes
from services.query.limits import BodyLimit, RequestCount
from services.query.problems import install_problems
from services.query.services import QueryServices


def build_app(services: QueryServices, *, body_limit_bytes: int) -> FastAPI:
    """The app over services that somebody else opens and closes."""
    app = FastAPI(
        title="DATS RAG",
        version=version("dats-rag"),
        description="Context retrieval and embedding management. Errors are RFC 9457 problem documents.",
        redirect_slashes=False,
    )
    app.state.services = services
    app.include_router(routes.router)
    app.add_api_route("/metrics", routes.metrics, methods=["GET"], include_in_schema=False)
    install_problems(app)
    app.add_middleware(BodyLimit, limit_bytes=body_limit_bytes)
    app.add_middleware(RequestCount, requests=services.metrics.http_requests)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        document["components"]["schemas"] |= {**problem.pop("$defs"), "Problem": problem}
        app.openapi_schema = document
    return app.openapi_schema
