"""The API as an OpenAPI 3.1 document, made from the same endpoints and models that serve it.

Nothing is described by hand but examples: what an endpoint may answer follows from its kind, its
body and the refusals that it names.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from duly import __version__
from duly.api.asgi import Endpoint, Kind
from duly.api.examples import EXAMPLES
from duly.api.problems import PROBLEM_CONTENT_TYPE, STATUS, Code, ProblemDetails
from duly.domain.limits import IDEMPOTENCY_KEY_PATTERN, KEY_CHARACTERS_MAX, TENANT_PATTERN

Json = dict[str, Any]
# Where the description of each model is.
Known = dict[Any, Json]

PROBLEM = PROBLEM_CONTENT_TYPE.decode()
SCHEMAS = "#/components/schemas/"
VERSION_PREFIX = "/v1/"
DESCRIPTION = (
    "A durable task scheduler. Instants are RFC 3339 with an offset, durations are seconds, errors "
    "are problem details (RFC 9457) with a stable `code`. Unknown fields are refused."
)
# Answers of any endpoint: the server gives these before it routes the request.
OF_EVERY_CALL = (
    Code.MALFORMED_REQUEST,
    Code.INVALID_QUERY,
    Code.REQUEST_TIMEOUT,
    Code.URL_TOO_LONG,
    Code.HEADERS_TOO_LARGE,
    Code.OVERLOADED,
    Code.TIMEOUT,
)
OF_WHO_CALLS = (
    Code.UNAUTHENTICATED,
    Code.FORBIDDEN,
    Code.TENANT_SUSPENDED,
    Code.NOT_FOUND,
    Code.RATE_LIMITED,
    Code.CONCURRENCY_LIMITED,
    Code.UNAVAILABLE,
)
OF_A_BODY = (Code.MALFORMED_BODY, Code.INVALID, Code.UNSUPPORTED_MEDIA_TYPE)
OF_A_KEPT_ANSWER = (Code.INVALID, Code.IDEMPOTENCY_MISMATCH)
REMEMBERED = (Kind.CONTROL, Kind.INSTALLATION)

HEADERS: Json = {
    "Retry-After": {
        "description": "Seconds to wait before another try.",
        "schema": {"type": "integer"},
    },
    "RateLimit-Limit": {
        "description": "Tasks that may be saved up.",
        "schema": {"type": "integer"},
    },
    "RateLimit-Remaining": {
        "description": "Tasks that may follow now.",
        "schema": {"type": "integer"},
    },
    "RateLimit-Reset": {
        "description": "Seconds until all are saved up.",
        "schema": {"type": "integer"},
    },
    "Idempotent-Replay": {
        "description": "`true`: the answer to an earlier call with the same key.",
        "schema": {"type": "string", "enum": ["true"]},
    },
    "WWW-Authenticate": {"description": "How to authenticate.", "schema": {"type": "string"}},
    "Allow": {"description": "The methods that the path takes.", "schema": {"type": "string"}},
}
RATE_HEADERS = ("RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset")
SIGNED_HEADERS = {
    "X-Duly-Key": "The id of the signing key.",
    "X-Duly-Timestamp": "Seconds since 1970; at most 300 away from the server's clock.",
    "X-Duly-Nonce": "8 to 128 printable characters, never used before.",
    "X-Duly-Signature": (
        "`v1=` and the HMAC-SHA256, in hexadecimal, over `v1`, method, path with query, timestamp, "
        "nonce, Content-Type, Idempotency-Key (each empty where not sent) and the SHA-256 of the "
        "body in hexadecimal, joined by newlines."
    ),
}
SECURITY_SCHEMES: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key (`duly_...`), or a JWT of the configured issuer.",
    },
    **{
        name: {"type": "apiKey", "in": "header", "name": name, "description": text}
        for name, text in SIGNED_HEADERS.items()
    },
}
SECURITY: list[Json] = [{"bearer": []}, {name: [] for name in SIGNED_HEADERS}]


def describe(endpoints: Sequence[Endpoint]) -> Json:
    models = list(dict.fromkeys(models_of(endpoints)))
    references, schemas = msgspec.json.schema_components(models, ref_template=SCHEMAS + "{name}")
    known: Known = dict(zip(models, references, strict=True))
    queries = {
        endpoint.query: schemas[known[endpoint.query]["$ref"].removeprefix(SCHEMAS)]
        for endpoint in endpoints
        if endpoint.query is not None
    }
    paths: Json = {}
    for endpoint in endpoints:
        operation = describe_operation(endpoint, known, queries)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    inlined = {known[query]["$ref"].removeprefix(SCHEMAS) for query in queries}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "duly",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(e.tag for e in endpoints if e.tag)],
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in schemas.items() if name not in inlined},
            "headers": HEADERS,
            "responses": {"MethodNotAllowed": describe_refusal(405, [Code.METHOD_NOT_ALLOWED])},
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def models_of(endpoints: Sequence[Endpoint]) -> Iterator[Any]:
    yield ProblemDetails
    for endpoint in endpoints:
        yield from (model for model in (endpoint.body, endpoint.query) if model is not None)
        yield from (model for model in endpoint.answers.values() if model is not None)


def describe_operation(endpoint: Endpoint, known: Known, queries: dict[type, Json]) -> Json:
    operation: Json = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "parameters": list(parameters(endpoint, queries)),
        "responses": describe_responses(endpoint, known),
    }
    if endpoint.body is not None:
        operation["requestBody"] = describe_body(endpoint, known[endpoint.body])
    if endpoint.kind is not Kind.OPEN:
        operation["security"] = SECURITY
        operation["description"] = access_sentence(endpoint)
        operation["x-duly-roles"] = sorted(endpoint.roles)
    return operation


def operation_id(endpoint: Endpoint) -> str:
    """Stable as long as method and path are: `post_tasks_by_id_run_now`."""
    segments = endpoint.path.removeprefix(VERSION_PREFIX).strip("/").split("/")
    words = [f"by_{each[1:-1]}" if each.startswith("{") else each for each in segments]
    return "_".join([endpoint.method.lower(), *words]).replace("-", "_").replace(".", "_")


def access_sentence(endpoint: Endpoint) -> str:
    roles = ", ".join(sorted(endpoint.roles))
    reach = " It must reach the installation." if endpoint.kind is Kind.INSTALLATION else ""
    return f"Needs a credential with one of the roles: {roles}.{reach}"


def parameters(endpoint: Endpoint, queries: dict[type, Json]) -> Iterator[Json]:
    for segment in endpoint.segments:
        if segment.startswith("{"):
            schema = {"type": "string", "minLength": 1}
            yield {"name": segment[1:-1], "in": "path", "required": True, "schema": schema}
    if endpoint.query is not None:
        model = queries[endpoint.query]
        for name, schema in model["properties"].items():
            yield query_parameter(name, schema, is_required=name in model["required"])
    if endpoint.kind is Kind.OPEN:
        return
    yield {
        "name": "tenant",
        "in": "query",
        "description": "Whose things, by name; another's need a credential of the installation.",
        "schema": {"type": "string", "pattern": f"^{TENANT_PATTERN.pattern}$"},
    }
    if takes_key(endpoint):
        yield {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "A second call with the same key gets the first one's answer. Visible "
            "ASCII without spaces.",
            "schema": {
                "type": "string",
                "minLength": 1,
                "maxLength": KEY_CHARACTERS_MAX,
                "pattern": f"^{IDEMPOTENCY_KEY_PATTERN.pattern}$",
            },
        }


def takes_key(endpoint: Endpoint) -> bool:
    is_remembered = endpoint.kind in REMEMBERED and endpoint.method != "GET"
    return is_remembered or Code.IDEMPOTENCY_MISMATCH in endpoint.refusals


def query_parameter(name: str, schema: Json, *, is_required: bool) -> Json:
    """A parameter is there or not; it is never null."""
    plain = dict(schema)
    if plain.get("default", ...) is None:
        del plain["default"]
    choices = [each for each in plain.pop("anyOf", []) if each != {"type": "null"}]
    if len(choices) == 1:
        plain |= choices[0]
    elif choices:
        plain["anyOf"] = choices
    parameter: Json = {"name": name, "in": "query"}
    if is_required:
        parameter["required"] = True
    if "description" in plain:
        parameter["description"] = plain.pop("description")
    return parameter | {"schema": plain}


def describe_body(endpoint: Endpoint, reference: Json) -> Json:
    content: Json = {}
    for media_type in endpoint.media_types:
        if media_type == "application/json":
            content[media_type] = {"schema": reference}
        else:
            # One document on each line; what a line holds is in the words of the summary.
            content[media_type] = {"schema": {"type": "string"}}
    example = EXAMPLES.get((endpoint.method, endpoint.path))
    if example is not None:
        content["application/json"]["example"] = example
    return {"required": not endpoint.is_body_optional, "content": content}


def refusals_of(endpoint: Endpoint) -> dict[int, list[Code]]:
    """Everything that can be wrong with a call of it, by status."""
    codes = {*OF_EVERY_CALL, *endpoint.refusals}
    if endpoint.kind is not Kind.OPEN:
        codes.update(OF_WHO_CALLS)
    if endpoint.kind is not Kind.OPEN and endpoint.method != "GET":
        codes.add(Code.BODY_TOO_LARGE)
    if endpoint.body is not None:
        codes.update(OF_A_BODY)
    if takes_key(endpoint):
        codes.update(OF_A_KEPT_ANSWER)
    found: dict[int, list[Code]] = {}
    for code in Code:
        if code in codes:
            found.setdefault(STATUS[code], []).append(code)
    return found


def describe_responses(endpoint: Endpoint, known: Known) -> Json:
    responses: dict[int, Json] = {}
    for status, model in endpoint.answers.items():
        response: Json = {"description": answer_words(status)}
        if model is not None:
            response["content"] = {endpoint.answer_media_type: {"schema": known[model]}}
        headers = list(answer_headers(endpoint, status))
        if headers:
            response["headers"] = {name: header(name) for name in headers}
        responses[status] = response
    for status, codes in refusals_of(endpoint).items():
        refusal = describe_refusal(status, codes)
        if status in responses:
            responses[status].setdefault("content", {}).update(refusal["content"])
        else:
            responses[status] = refusal
    return {str(status): responses[status] for status in sorted(responses)}


def answer_words(status: int) -> str:
    return {201: "Made.", 202: "Taken, and not done yet.", 204: "Done.", 503: "Not now."}.get(
        status, "As asked."
    )


def answer_headers(endpoint: Endpoint, status: int) -> Iterator[str]:
    if status < 300 and Code.RATE_LIMITED in endpoint.refusals:
        yield from RATE_HEADERS
    if status < 300 and takes_key(endpoint):
        yield "Idempotent-Replay"


def describe_refusal(status: int, codes: Sequence[Code]) -> Json:
    named = {"properties": {"code": {"enum": list(codes)}}}
    schema = {"allOf": [{"$ref": SCHEMAS + ProblemDetails.__name__}, named]}
    response: Json = {
        "description": "Refused: " + ", ".join(f"`{code}`" for code in codes) + ".",
        "content": {PROBLEM: {"schema": schema}},
    }
    names = {401: ["WWW-Authenticate"], 405: ["Allow"], 503: ["Retry-After"]}.get(status, [])
    if status == 429:
        names = ["Retry-After", *RATE_HEADERS]
    if names:
        response["headers"] = {name: header(name) for name in names}
    return response


def header(name: str) -> Json:
    return {"$ref": f"#/components/headers/{name}"}
