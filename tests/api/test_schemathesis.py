"""The running server against its own description: inputs that nobody thought of, no 5xx, and no
answer that was not announced."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks as openapi_checks

from tests.servers import ServerOfTheRun
from tests.story.duly_up import RunningDuly, duly_up

# For each operation; all of them together stay under a minute.
EXAMPLES_MAX = 15
REQUEST_TIMEOUT_S = 10.0
# Calls that wait on purpose would only wait: where the time is said, and the longest for a test.
WAITS = {
    "/v1/worker/lease": ("body", "wait_s"),
    "/v1/tasks/{id}/wait": ("query", "timeout_s"),
    "/v1/tasks/{id}/logs": ("query", "follow"),
    "/v1/workflows/{id}/wait": ("query", "timeout_s"),
}
WAIT_S_MAX = 0.01
# A stream lasts for minutes: little of it is read, and seldom.
STREAMS = {"/v1/events": 2.0}
STREAM_EXAMPLES_MAX = 2


def refuses_what_is_wrong(context: Any, response: Any, case: Any) -> Any:
    """A body or URL that is too long is refused before it is read, whatever else is wrong."""
    if response.status_code in TOO_LONG:
        return None
    return openapi_checks.negative_data_rejection(context, response, case)


TOO_LONG = (413, 414)
ALWAYS: list[Any] = [
    *CHECKS.get_by_names(["not_a_server_error"]),
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.ignored_auth,
    openapi_checks.unsupported_method,
]
OF_MODE = {
    # Not that it is accepted: an id that was made up is not found.
    GenerationMode.POSITIVE: ALWAYS,
    GenerationMode.NEGATIVE: [*ALWAYS, refuses_what_is_wrong],
}
COLLECTION = re.compile(r"(?P<collection>/v1/[a-z-]+)/\{(?P<name>\w+)\}.*")
Operation = schemathesis.APIOperation[Any, Any, Any, Any]


@pytest.fixture(scope="module")
def duly(server: ServerOfTheRun) -> Iterator[RunningDuly]:
    with server.database() as name:
        environ = {
            "DULY_DATABASE_URL": server.engine_url(name),
            "DULY_MIGRATION_DATABASE_URL": server.url(name),
        }
        with duly_up(environ=environ) as running:
            make_what_chance_does_not(running)
            yield running


def make_what_chance_does_not(duly: RunningDuly) -> None:
    """A graph has to be sound: what was made up never is, and its other routes would all be 404."""
    nodes = {"a": {"type": "a"}, "b": {"type": "b", "after": ["a"]}}
    headers = {"Authorization": f"Bearer {duly.ready['api_key']}"}
    calls: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "/v1/workflow-types/w", {"nodes": nodes}),
        ("POST", "/v1/workflows", {"type": "w"}),
    )
    for method, path, body in calls:
        made = requests.request(
            method, duly.url + path, json=body, headers=headers, timeout=REQUEST_TIMEOUT_S
        )
        assert made.status_code == 201, made.text


@dataclass
class Findings:
    """What was wrong, once for each operation, and how often each status was answered."""

    duly: RunningDuly
    session: requests.Session
    wrong: dict[str, str] = field(default_factory=dict)
    statuses: dict[str, dict[int, int]] = field(default_factory=dict)
    named: int = 0
    # The failing one: the smallest example is the last that is tried.
    last: str = ""

    def look(self, operation: Operation, mode: GenerationMode) -> None:
        @settings(
            max_examples=STREAM_EXAMPLES_MAX if operation.path in STREAMS else EXAMPLES_MAX,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Case[Any]) -> None:
            hurry(case)
            self.name_what_exists(case)
            timeout_s = STREAMS.get(case.path, REQUEST_TIMEOUT_S)
            response = case.call(base_url=self.duly.url, session=self.session, timeout=timeout_s)
            counts = self.statuses.setdefault(operation.label, {})
            counts[response.status_code] = counts.get(response.status_code, 0) + 1
            self.last = f"{response.request.method} {response.request.url}\n{response.text[:500]}"
            case.validate_response(response, checks=OF_MODE[mode])

        try:
            ask()
        except Unsatisfiable:
            """Nothing about this operation can be wrong."""
        except (FailureGroup, AssertionError, requests.RequestException) as failure:
            self.wrong[f"{mode.value} {operation.label}"] = f"{words_of(failure)}\n{self.last}"

    def name_what_exists(self, case: Case[Any]) -> None:
        """Every second time: an id that was made up never gets past 404."""
        found = COLLECTION.fullmatch(case.path)
        if found is None or not case.path_parameters:
            return
        self.named += 1
        if self.named % 2:
            return
        listed = self.session.get(self.duly.url + found["collection"], timeout=REQUEST_TIMEOUT_S)
        for item in listed.json()["items"]:
            # Our own key must live on.
            known = item.get(found["name"], "")
            if known and known not in self.duly.ready["api_key"]:
                case.path_parameters[found["name"]] = known
                return

    @property
    def served(self) -> int:
        """Operations that were not only refused."""
        return sum(any(status < 300 for status in each) for each in self.statuses.values())


def hurry(case: Case[Any]) -> None:
    where, name = WAITS.get(case.path, ("", ""))
    place: Any = getattr(case, where, None)
    if isinstance(place, dict):
        asked = place.setdefault(name, WAIT_S_MAX)
        if isinstance(asked, int | float) and asked > WAIT_S_MAX:
            place[name] = WAIT_S_MAX


def sound(found: Any) -> Operation:
    """An operation whose description cannot be read is a failure of its own."""
    operation: Operation = found.ok()
    return operation


def words_of(failure: BaseException) -> str:
    inner = failure.exceptions if isinstance(failure, FailureGroup) else [failure]
    return "\n".join(str(each) for each in inner)[:3000]


def described(duly: RunningDuly, session: requests.Session) -> Any:
    """As served, without what would have every second call turned away before it is looked at:
    invented signatures, and invented tenants."""
    document = session.get(f"{duly.url}/openapi.json", timeout=REQUEST_TIMEOUT_S).json()
    for path in document["paths"].values():
        for operation in path.values():
            if "security" in operation:
                operation["security"] = [{"bearer": []}]
            parameters = operation["parameters"]
            operation["parameters"] = [each for each in parameters if each["name"] != "tenant"]
    return schemathesis.openapi.from_dict(document)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_the_server_answers_as_it_announced(duly: RunningDuly, mode: GenerationMode) -> None:
    """A 5xx, an unannounced status or another shape is what a client's author finds at night."""
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {duly.ready['api_key']}"
        findings = Findings(duly, session)
        schema = described(duly, session)
        operations = [sound(found) for found in schema.get_all_operations()]
        for operation in operations:
            findings.look(operation, mode)
    assert not findings.wrong, "\n\n".join(
        f"== {label}\n{words}" for label, words in findings.wrong.items()
    )
    if mode is GenerationMode.POSITIVE:
        # Some need what no single call can make: a dead letter, a held lease.
        assert findings.served >= len(operations) * 2 / 3, findings.statuses
    assert duly.is_ready()
