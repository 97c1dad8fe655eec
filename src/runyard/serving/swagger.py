"""The description of a service in OpenAPI 2.0, with v1's names for its parts. Pure."""

from collections.abc import Mapping

_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "string"},
        "code": {"type": "string"},
        "why": {"type": "string"},
        "fix": {"type": "string"},
    },
}
_FAILED = {
    "description": "The service failed to execute due to an error.",
    "schema": {"$ref": "#/definitions/ErrorResponse"},
}


def swagger(name: str, hello: Mapping[str, object], *, secured: bool) -> dict[str, object]:
    """The document at /swagger.json; the schemas are what the worker said in its hello."""
    schemas = hello.get("swagger")
    known = schemas if isinstance(schemas, dict) else {}
    score: dict[str, object] = {
        "operationId": "RunMLService",
        "description": "Run web service's model and get the prediction output",
        "parameters": [
            {
                "name": "serviceInputPayload",
                "in": "body",
                "description": "The input payload for executing the real-time machine learning "
                "service.",
                "schema": {"$ref": "#/definitions/ServiceInput"},
            }
        ],
        "responses": {
            "200": {
                "description": "The service processed the input correctly and provided a result "
                "prediction, if applicable.",
                "schema": {"$ref": "#/definitions/ServiceOutput"},
            },
            "default": _FAILED,
        },
    }
    document: dict[str, object] = {
        "swagger": "2.0",
        "info": {
            "title": name,
            "description": f"API specification for the service {name}",
            "version": "1.0",
        },
        "consumes": ["application/json"],
        "produces": ["application/json"],
        "paths": {"/": {"get": _health()}, "/score": {"post": score}},
        "definitions": {
            "ServiceInput": known.get("input") or {"type": "object"},
            "ServiceOutput": known.get("output") or {"type": "object"},
            "ErrorResponse": _ERROR,
        },
    }
    if secured:
        score["security"] = [{"Bearer": []}]
        document["securityDefinitions"] = {
            "Bearer": {
                "type": "apiKey",
                "name": "Authorization",
                "in": "header",
                "description": "For example: Bearer abc123",
            }
        }
    return document


def _health() -> dict[str, object]:
    return {
        "operationId": "ServiceHealthCheck",
        "description": "Simple health check endpoint to ensure the service is up at any given "
        "point.",
        "responses": {
            "200": {
                "description": "If service is up and running, this response will be returned with "
                "the content 'Healthy'",
                "schema": {"type": "string"},
                "examples": {"application/json": "Healthy"},
            },
            "default": _FAILED,
        },
    }
