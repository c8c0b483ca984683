"""The description of the API: true to the routes, complete, and readable without a network."""

import base64
import hashlib
import html.parser
import re
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from duly.api.asgi import Endpoint, Kind
from duly.api.examples import EXAMPLES
from duly.api.explanations import EXPLANATIONS
from duly.api.json_body import decode
from duly.api.openapi import describe, operation_id
from duly.api.problems import Code
from tests.api.conftest import Front

METHODS = {"get", "post", "put", "patch", "delete"}


async def document_of(front: Front) -> dict[str, Any]:
    reply = await front.call("GET", "/openapi.json", key=None)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "application/json"
    found: dict[str, Any] = reply.json
    return found


async def test_every_route_is_described_and_nothing_else(front: Front) -> None:
    """What is not described is not found, and what is only described is not there."""
    document = await document_of(front)
    described = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
    }
    served = {(endpoint.method, endpoint.path) for endpoint in front.door.endpoints()}
    assert described == served | {("GET", "/openapi.json"), ("GET", "/docs")}


async def test_every_reference_leads_somewhere_and_every_schema_is_one(front: Front) -> None:
    """A generator of clients stops at the first dead reference."""
    document = await document_of(front)
    for reference in set(re.findall(r'"\$ref":"([^"]+)"', msgspec.json.encode(document).decode())):
        place: Any = document
        assert reference.startswith("#/")
        for step in reference[2:].split("/"):
            place = place[step]
    for name, schema in document["components"]["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        jsonschema_rs.meta.validate(schema)


async def test_operation_ids_are_unique_words(front: Front) -> None:
    """They become the names of functions in generated clients."""
    ids = [operation_id(endpoint) for endpoint in front.door.endpoints()]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", each) for each in ids)
    assert "post_tasks" in ids
    assert "get_tasks_by_id" in ids
    assert "post_tasks_by_id_run_now" in ids


async def test_every_example_is_what_its_route_takes(front: Front) -> None:
    """An example that is refused is the first thing that a reader tries."""
    routes = {(endpoint.method, endpoint.path): endpoint for endpoint in front.door.endpoints()}
    for route, example in EXAMPLES.items():
        model = routes[route].body
        assert model is not None
        decode(msgspec.json.encode(example), model)
    assert {route for route, each in routes.items() if each.body is not None} == set(EXAMPLES)


async def test_every_refusal_is_a_problem_and_says_which(front: Front) -> None:
    """A client can only handle what it was told about."""
    document = await document_of(front)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            refusals = {status for status in responses if status >= "400"}
            for status in refusals:
                content = responses[status]["content"]
                assert "application/problem+json" in content, (method, path, status)
            if operation.get("security"):
                assert {"400", "401", "403", "404", "503"} <= refusals, (method, path)
                assert "WWW-Authenticate" in responses["401"]["headers"]
            if "requestBody" in operation:
                assert {"413", "415", "422"} <= refusals, (method, path)


async def test_statuses_follow_from_what_an_endpoint_is() -> None:
    """Each endpoint would have to remember what the door answers for it."""

    async def nothing(*_arguments: object) -> Any:
        """Never called."""

    class Asked(msgspec.Struct):
        name: str

    def statuses(**facts: Any) -> set[str]:
        endpoint = Endpoint(path="/v1/things", summary="", handler=nothing, **facts)
        (operation,) = describe([endpoint])["paths"]["/v1/things"].values()
        return set(operation["responses"])

    always = {"400", "408", "414", "431", "503"}
    known = always | {"401", "403", "404", "429"}
    assert statuses(method="GET", kind=Kind.OPEN) == always
    assert statuses(method="GET", kind=Kind.READ) == known
    assert statuses(method="POST", kind=Kind.HOT) == known | {"413"}
    assert statuses(method="POST", kind=Kind.CONTROL) == known | {"409", "413", "422"}
    asked = statuses(method="POST", kind=Kind.HOT, body=Asked, refusals=(Code.RATE_LIMITED,))
    assert asked == known | {"413", "415", "422"}


async def test_parameters_come_from_the_query_model_and_are_never_null(front: Front) -> None:
    """A client that sends `state=null` is refused."""
    document = await document_of(front)
    parameters = {
        each["name"]: each for each in document["paths"]["/v1/tasks"]["get"]["parameters"]
    }
    assert {"state", "type", "tag", "limit", "cursor", "tenant"} <= parameters.keys()
    limit = parameters["limit"]["schema"]
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, 200, 50)
    for operations in document["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                assert '"null"' not in msgspec.json.encode(parameter["schema"]).decode()


class Reading(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                assert value not in self.ids, f"{value} is there twice"
                self.ids.add(value or "")
            if name == "href":
                self.links.add(value or "")


async def read_page(front: Front) -> tuple[Reading, str, str]:
    reply = await front.call("GET", "/docs", key=None)
    assert reply.status == 200
    assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
    reading = Reading()
    reading.feed(reply.body.decode())
    return reading, reply.body.decode(), reply.headers["Content-Security-Policy"]


async def test_the_page_needs_nothing_from_anywhere(front: Front) -> None:
    """In a network without a way out, half of it would be missing."""
    reading, text, policy = await read_page(front)
    assert not reading.tags & {"img", "link", "iframe", "object", "form"}
    assert not reading.attributes & {"src", "style", "onclick", "onload"}
    assert all(link.startswith("#") or link in ("./", "openapi.json") for link in reading.links)
    assert not re.search(r"url\(|@import|https?://", re.sub(r"<pre.*?</pre>", "", text))
    assert policy.startswith("default-src 'none';")
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


async def test_every_link_inside_the_page_leads_somewhere(front: Front) -> None:
    """The `type` of a problem is such a link."""
    reading, text, _ = await read_page(front)
    missing = {link for link in reading.links if link.startswith("#")} - {
        f"#{each}" for each in reading.ids
    }
    assert not missing
    for endpoint in front.door.endpoints():
        assert operation_id(endpoint) in reading.ids
        assert endpoint.path in text
    refused = (await front.call("GET", "/v1/tasks", key=None)).json
    assert refused["type"] == "/docs#problem-unauthenticated"


@pytest.mark.parametrize("code", Code)
def test_every_problem_is_explained(code: Code) -> None:
    """A code without a remedy is a riddle."""
    meaning, remedy = EXPLANATIONS[code]
    assert meaning.endswith(".")
    assert remedy.endswith(".")


async def test_every_problem_has_an_anchor(front: Front) -> None:
    """`type` of each problem leads there."""
    reading, _, _ = await read_page(front)
    assert {f"problem-{code}" for code in Code} <= reading.ids


async def test_a_path_that_takes_other_methods_says_which(front: Front) -> None:
    """405 without `Allow` leaves the caller to guess."""
    reply = await front.call("PUT", "/v1/tasks")
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.headers["Allow"] == "GET, POST"
