"""API description endpoints: OpenAPI (`/openapi.json`) and an HTML page (`/docs`).

The page is generated from the document and is self-contained: the dashboard's styles and a script
for search are in it, named by their digests in its policy; it has links relative to itself.
"""

import base64
import functools
import hashlib
import html
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

import msgspec

from duly.api.asgi import Endpoint, Kind
from duly.api.docs_samples import curl_sample, python_sample
from duly.api.explanations import EXPLANATIONS
from duly.api.openapi import SCHEMAS, Json, describe
from duly.api.problems import STATUS
from duly.api.request import Answer, Call

TAG = "Documentation"
HTML = b"text/html; charset=utf-8"
WEB = files("duly.web")
STYLE = (WEB / "duly.css").read_text() + (WEB / "api-docs.css").read_text()
SCRIPT = (WEB / "api-docs.js").read_text()


def digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; script-src {digest(SCRIPT)}; style-src {digest(STYLE)}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
TABLE = '<div class="scroll" tabindex="0" role="region" aria-label="Table"><table>'
TABLE_END = "</table></div>"
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
    title = f"{text(info['title'])} API"
    operations = list(operations_of(document))
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f'<title>{title}</title><style>{STYLE}</style></head><body class="api">'
    yield '<a class="skip" href="#main">Skip to content</a>'
    yield f'<header id="top"><a class="brand" href="./">{text(info["title"])}</a>'
    yield f'<span class="quiet">API {text(info["version"])}</span><span class="space"></span>'
    yield '<input id="search" type="search" aria-label="Search the API" hidden '
    yield 'placeholder="Search (/)"><a class="small" href="openapi.json">OpenAPI</a></header>'
    yield '<div id="body">'
    yield from contents(document, operations)
    yield f'<main id="main" tabindex="-1"><h1>{title}</h1>'
    yield f"<p>{words(info['description'])}</p>"
    yield '<p id="found" class="hint" role="status" aria-live="polite"></p>'
    yield from authentication(document)
    for tag in document["tags"]:
        yield f'<section class="group" id="{anchor(tag["name"])}"><h2>{text(tag["name"])}</h2>'
        for method, path, operation in operations:
            if operation["tags"] == [tag["name"]]:
                yield from section(method, path, operation)
        yield "</section>"
    yield from problems()
    yield '<section class="group" id="models"><h2>Models</h2>'
    for name, schema in document["components"]["schemas"].items():
        yield from model(name, schema)
    yield f'</section></main></div><script type="module">{SCRIPT}</script></body></html>'


def operations_of(document: Json) -> Iterator[tuple[str, str, Json]]:
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield method.upper(), path, operation


def contents(document: Json, operations: list[tuple[str, str, Json]]) -> Iterator[str]:
    yield '<nav id="nav" aria-label="Contents"><details open><summary>Contents</summary><ul>'
    yield '<li><a href="#authentication">Authentication</a></li>'
    for tag in document["tags"]:
        yield f'<li class="tag-name"><a href="#{anchor(tag["name"])}">{text(tag["name"])}</a></li>'
        for method, path, operation in operations:
            if operation["tags"] == [tag["name"]]:
                href, said = text(operation["operationId"]), text(operation["summary"])
                yield f'<li><a href="#{href}" title="{said}">{method_mark(method)} '
                yield f"{text(path.removeprefix('/v1'))}</a></li>"
    yield '<li class="tag-name"><a href="#problems">Problems</a></li>'
    yield '<li class="tag-name"><a href="#models">Models</a></li></ul></details></nav>'


def method_mark(method: str) -> str:
    return f'<span class="method m-{text(method.lower())}">{text(method)}</span>'


def anchor(tag: str) -> str:
    return "tag-" + re.sub(r"[^a-z0-9]+", "-", tag.lower())


def authentication(document: Json) -> Iterator[str]:
    yield '<section class="group" id="authentication"><h2>Authentication</h2>'
    yield "<p>One of the two: a bearer credential, or all four headers of a signed call.</p>"
    yield TABLE
    for name, scheme in document["components"]["securitySchemes"].items():
        shown = "Authorization: Bearer" if scheme["type"] == "http" else name
        yield f"<tr><td><code>{text(shown)}</code></td><td>{words(scheme['description'])}</td></tr>"
    yield TABLE_END
    yield "<p>The samples read <code>DULY_URL</code> and <code>DULY_API_KEY</code>, which "
    yield "<code>duly env</code> prints for a <code>duly up</code> of this machine.</p></section>"


def section(method: str, path: str, operation: Json) -> Iterator[str]:
    yield f'<section class="entry" id="{text(operation["operationId"])}">'
    yield f"<h3><code>{method_mark(method)} {text(path)}</code></h3>"
    yield f"<p>{words(operation['summary'])}. {words(operation.get('description', ''))}</p>"
    yield from samples(method, path, operation)
    if operation["parameters"]:
        yield "<h4>Parameters</h4>" + TABLE
        for parameter in operation["parameters"]:
            required = "required" if parameter.get("required") else ""
            yield row(
                f"<code>{text(parameter['name'])}</code>",
                f"{text(parameter['in'])} {required}",
                kind_of(parameter["schema"]),
                words(parameter.get("description", "")),
            )
        yield TABLE_END
    if "requestBody" in operation:
        yield from body(operation["requestBody"])
    yield "<h4>Answers</h4>" + TABLE
    for status, response in operation["responses"].items():
        shown = [kind_of(media["schema"]) for media in response.get("content", {}).values()]
        headers = ", ".join(f"<code>{text(name)}</code>" for name in response.get("headers", {}))
        yield row(status, " or ".join(shown), problem_links(response["description"]), headers)
    yield TABLE_END + "</section>"


def samples(method: str, path: str, operation: Json) -> Iterator[str]:
    """The same call twice; a page that streams is no sample for the client."""
    yield '<div class="samples">'
    yield sample("curl", curl_sample(method, path, operation))
    if (python := python_sample(method, path, operation)) is not None:
        yield sample("Python", python)
    yield "</div>"


def sample(language: str, code: str) -> str:
    name = text(language)
    return (
        f'<figure class="sample"><figcaption>{name}</figcaption>'
        f'<pre tabindex="0" aria-label="{name} sample">{text(code)}</pre></figure>'
    )


def body(request: Json) -> Iterator[str]:
    yield "<h4>Body</h4>" if request["required"] else "<h4>Body (may be left out)</h4>"
    for media_type, media in request["content"].items():
        yield f"<p><code>{text(media_type)}</code>: {kind_of(media['schema'])}</p>"


def problems() -> Iterator[str]:
    yield '<section class="group" id="problems"><h2>Problems</h2>'
    yield "<p>Every refusal has a <code>code</code>; this is what each means.</p>"
    for code, (meaning, remedy) in EXPLANATIONS.items():
        yield f'<section class="entry" id="problem-{text(code)}">'
        yield f"<h3><code>{text(code)}</code> {STATUS[code]}</h3>"
        yield f"<p>{words(meaning)}</p><p>{words(remedy)}</p></section>"
    yield "</section>"


def model(name: str, schema: Json) -> Iterator[str]:
    yield f'<section class="entry" id="model-{text(name)}">'
    yield f"<h3><code>{text(schema.get('title', name))}</code></h3>"
    yield f"<p>{words(schema.get('description', ''))}</p>"
    if "enum" in schema:
        yield f"<p>{kind_of(schema)}</p>"
    if schema.get("properties"):
        yield TABLE
        for field, inner in schema["properties"].items():
            required = "required" if field in schema.get("required", []) else ""
            told = words(description_of(inner))
            yield row(f"<code>{text(field)}</code>", required, kind_of(inner), told)
        yield TABLE_END
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
