"""The OpenAPI document of a replica's routes: what `/openapi.json` serves and docs/http-api.md is written from."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from dats_common.contracts.api import Problem
from services.query import answer_routes, routes
from services.query.gate import OPEN_PATHS

_SECURITY_SCHEMES = {
    "ApiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "made by `dats-rag keys create`"},
    "Bearer": {"type": "http", "scheme": "bearer", "description": "an API key, or a token of the identity provider"},
}


def routed_app() -> FastAPI:
    """An app with every route and its document, and nothing behind them yet."""
    app = FastAPI(
        title="DATS RAG",
        version=version("dats-rag"),
        description="Context retrieval and embedding management. Errors are RFC 9457 problem documents.",
        redirect_slashes=False,
        # The framework's own spans would carry paths and messages of errors to whatever a host program has set up.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.include_router(routes.router)
    app.include_router(answer_routes.router)
    app.add_api_route("/metrics", routes.metrics, methods=["GET"], include_in_schema=False)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


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
