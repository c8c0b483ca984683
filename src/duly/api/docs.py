"""API description endpoints: OpenAPI (`/openapi.json`) and an HTML page (`/docs`).

The page is generated from the document and is self-contained: no script, nothing that a browser
would have to fetch.
"""

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.explanations import EXPLANATIONS
from duly.api.openapi import SCHEMAS, Json, describe
from duly.api.problems import STATUS
from duly.api.request import Answer, Call

TAG = "Documentation"
HTML = b"text/html; charset=utf-8"
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:0 auto;padding:1rem;"
    "color:#1b1f24;background:#fff}"
    "code,pre{font:14px/1.45 ui-monospace,monospace}"
    "pre{background:#f3f4f6;padding:.7rem;overflow:auto}"
    "table{border-collapse:collapse;width:100%;margin:.5rem 0}"
    "th,td{text-align:left;vertical-align:top;padding:.25rem .6rem;border-bottom:1px solid #d8dbe0}"
    "section{border-top:1px solid #d8dbe0;margin-top:1.5rem}"
    "h3 code{font-size:1rem}.method{font-weight:700}:target{background:#fff6d6}"
    "@media(prefers-color-scheme:dark){body{color:#e4e6ea;background:#16181c}"
    "pre{background:#22252b}a{color:#8ab4ff}th,td,section{border-color:#3a3e46}"
    ":target{background:#3a3415}}"
)
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
CODE_WORDS = re.compile(r"`([^`]+)`")


class DescriptionRoutes:
    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self.described = [*endpoints, *self.endpoints()]

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint(
                method="GET",
                path="/openapi.json",
                summary="API description as OpenAPI",
                handler=self.document,
                kind=Kind.OPEN,
                answers={200: dict[str, Any]},
                tag=TAG,
            ),
            Endpoint(
                method="GET",
                path="/docs",
                summary="API description as a page",
                handler=self.page,
                kind=Kind.OPEN,
                answers={200: str},
                answer_media_type="text/html",
                tag=TAG,
            ),
        ]

    @functools.cached_property
    def description(self) -> Json:
        return describe(self.described)

    @functools.cached_property
    def document_bytes(self) -> bytes:
        return msgspec.json.encode(self.description)

    @functools.cached_property
    def page_bytes(self) -> bytes:
        return "\n".join(page_of(self.description)).encode()

    async def document(self, _call: Call) -> Answer:
        return Answer(200, self.document_bytes)

    async def page(self, _call: Call) -> Answer:
        return Answer(200, self.page_bytes, PAGE_HEADERS, HTML)


def page_of(document: Json) -> Iterator[str]:
    info = document["info"]
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width">'
    yield f"<title>{text(info['title'])} API</title><style>{STYLE}</style></head><body>"
    yield f"<h1>{text(info['title'])} {text(info['version'])}</h1>"
    yield f"<p>{words(info['description'])}</p>"
    yield '<p>For programs: <a href="/openapi.json">/openapi.json</a>. '
    yield '<a href="#authentication">Authentication</a>, <a href="#problems">problems</a>, '
    yield '<a href="#models">models</a>.</p>'
    operations = list(operations_of(document))
    yield from contents(document, operations)
    yield from authentication(document)
    for tag in document["tags"]:
        yield f"<h2>{text(tag['name'])}</h2>"
        for method, path, operation in operations:
            if operation["tags"] == [tag["name"]]:
                yield from section(method, path, operation)
    yield from problems()
    yield '<h2 id="models">Models</h2>'
    for name, schema in document["components"]["schemas"].items():
        yield from model(name, schema)
    yield "</body></html>"


def operations_of(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def contents(document: Json, operations: list[tuple[str, str, Json]]) -> Iterator[str]:
    yield "<table>"
    for tag in document["tags"]:
        for method, path, operation in operations:
            if operation["tags"] == [tag["name"]]:
                link = (
                    f'<a href="#{text(operation["operationId"])}">{text(method)} {text(path)}</a>'
                )
                yield f"<tr><td><code>{link}</code></td><td>{words(operation['summary'])}</td></tr>"
    yield "</table>"


def authentication(document: Json) -> Iterator[str]:
    yield '<h2 id="authentication">Authentication</h2>'
    yield "<p>One of the two: a bearer credential, or all four headers of a signed call.</p><table>"
    for name, scheme in document["components"]["securitySchemes"].items():
        shown = "Authorization: Bearer" if scheme["type"] == "http" else name
        yield f"<tr><td><code>{text(shown)}</code></td><td>{words(scheme['description'])}</td></tr>"
    yield "</table>"


def section(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f'<section id="{text(operation["operationId"])}">'
    yield f'<h3><code><span class="method">{text(method)}</span> {text(path)}</code></h3>'
    yield f"<p>{words(operation['summary'])}. {words(operation.get('description', ''))}</p>"
    if operation["parameters"]:
        yield "<h4>Parameters</h4><table>"
        for parameter in operation["parameters"]:
            required = "required" if parameter.get("required") else ""
            yield row(
                f"<code>{text(parameter['name'])}</code>",
                f"{text(parameter['in'])} {required}",
                kind_of(parameter["schema"]),
                words(parameter.get("description", "")),
            )
        yield "</table>"
    if "requestBody" in operation:
        yield from body(operation["requestBody"])
    yield "<h4>Answers</h4><table>"
    for status, response in operation["responses"].items():
        shown = [kind_of(media["schema"]) for media in response.get("content", {}).values()]
        headers = ", ".join(f"<code>{text(name)}</code>" for name in response.get("headers", {}))
        yield row(status, " or ".join(shown), problem_links(response["description"]), headers)
    yield "</table></section>"


def body(request: Json) -> Iterator[str]:
    yield "<h4>Body</h4>" if request["required"] else "<h4>Body (may be left out)</h4>"
    for media_type, media in request["content"].items():
        yield f"<p><code>{text(media_type)}</code>: {kind_of(media['schema'])}</p>"
        if "example" in media:
            example = msgspec.json.format(msgspec.json.encode(media["example"]), indent=2)
            yield f"<pre>{text(example.decode())}</pre>"


def problems() -> Iterator[str]:
    yield '<h2 id="problems">Problems</h2>'
    yield "<p>Every refusal has a <code>code</code>; this is what each means.</p>"
    for code, (meaning, remedy) in EXPLANATIONS.items():
        yield f'<section id="problem-{text(code)}">'
        yield f"<h3><code>{text(code)}</code> {STATUS[code]}</h3>"
        yield f"<p>{words(meaning)}</p><p>{words(remedy)}</p></section>"


def model(name: str, schema: Json) -> Iterator[str]:
    yield f'<section id="model-{text(name)}">'
    yield f"<h3><code>{text(schema.get('title', name))}</code></h3>"
    yield f"<p>{words(schema.get('description', ''))}</p>"
    if "enum" in schema:
        yield f"<p>{kind_of(schema)}</p>"
    if schema.get("properties"):
        yield "<table>"
        for field, inner in schema["properties"].items():
            required = "required" if field in schema.get("required", []) else ""
            told = words(description_of(inner))
            yield row(f"<code>{text(field)}</code>", required, kind_of(inner), told)
        yield "</table>"
    yield "</section>"


def description_of(schema: Json) -> str:
    found = [schema, *schema.get("anyOf", [])]
    return next((each["description"] for each in found if "description" in each), "")


BOUNDS = {
    "minimum": "≥ {}",
    "maximum": "≤ {}",
    "exclusiveMinimum": "> {}",
    "exclusiveMaximum": "< {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} members",
    "pattern": "like {}",
}


def kind_of(schema: Json) -> str:
    """One type in words, with its bounds; a model is a link."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMAS)
        return f'<a href="#model-{text(name)}"><code>{text(name)}</code></a>'
    if "allOf" in schema:
        return kind_of(schema["allOf"][0])
    if "anyOf" in schema:
        return " or ".join(kind_of(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"<code>{text(value)}</code>" for value in schema["enum"])
    kind = text(schema.get("format") or schema.get("type") or "any JSON value")
    if schema.get("items"):
        kind = f"array of {kind_of(schema['items'])}"
    bounds = [text(form.format(schema[name])) for name, form in BOUNDS.items() if name in schema]
    if schema.get("default") is not None:
        bounds.append(
            "default <code>" + text(msgspec.json.encode(schema["default"]).decode()) + "</code>"
        )
    return ", ".join([kind, *bounds])


def problem_links(description: str) -> str:
    return CODE_WORDS.sub(
        lambda found: f'<a href="#problem-{found[1]}"><code>{found[1]}</code></a>',
        text(description),
    )


def row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def words(value: str) -> str:
    """Text in which `this` is code."""
    return CODE_WORDS.sub(r"<code>\1</code>", text(value))


def text(value: object) -> str:
    return html.escape(str(value))
