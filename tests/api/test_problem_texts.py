"""Problems as people read them: what was not found, and which field is wrong, in one sentence."""

from typing import Any
from uuid import UUID

import pytest

from duly.api.problems import SENTENCES_MAX, invalid, sentence_of
from duly.client.errors import ApiError
from duly.domain.limits import Problem
from tests.api.conftest import Front

MISSING = str(UUID(int=7 << 76 | 2 << 62 | 1))
TASK = {"type": "a.b", "delay_s": 3600}


@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("GET", f"/v1/tasks/{MISSING}", None, f"task {MISSING} was not found"),
        ("GET", "/v1/tasks/inv-7", None, "task inv-7 was not found"),
        ("POST", f"/v1/tasks/{MISSING}/cancel", None, f"task {MISSING} was not found"),
        ("POST", f"/v1/tasks/{MISSING}/run-now", None, f"task {MISSING} was not found"),
        ("GET", f"/v1/tasks/{MISSING}/explain", None, f"task {MISSING} was not found"),
        ("GET", f"/v1/tasks/{MISSING}/attempts", None, f"task {MISSING} was not found"),
        ("GET", f"/v1/schedules/{MISSING}", None, f"schedule {MISSING} was not found"),
        ("DELETE", "/v1/schedules/nightly", None, "schedule nightly was not found"),
        ("GET", f"/v1/dead-letters/{MISSING}", None, f"dead letter {MISSING} was not found"),
        ("POST", "/v1/dead-letters/x/replay", None, "dead letter x was not found"),
        ("GET", "/v1/keys/abcdefghijkm", None, "key abcdefghijkm was not found"),
        ("GET", "/v1/task-types/mail", None, "task type mail was not found"),
        ("GET", "/v1/tenants/nobody", None, "tenant nobody was not found"),
        ("GET", "/v1/tasks?tenant=nobody", None, "tenant nobody was not found"),
        ("DELETE", "/v1/webhook-secrets/x", None, "webhook secret x was not found"),
        ("DELETE", "/v1/notifications/x", None, "notification x was not found"),
        ("POST", "/v1/breakers/close", {"host": "a"}, "open breaker for host a was not found"),
        ("POST", "/v1/pauses/resume", {"kind": "tenant"}, "pause of tenant was not found"),
        (
            "POST",
            "/v1/pauses/resume",
            {"kind": "type", "name": "a.b"},
            "pause of type a.b was not found",
        ),
        ("GET", "/v1/nothing", None, "path /v1/nothing was not found; /docs lists all"),
    ],
)
async def test_what_was_not_found_is_named(
    front: Front, method: str, path: str, body: Any, detail: str
) -> None:
    """ "There is no such thing" leaves its reader to guess which of five ids was mistyped."""
    reply = await front.call(method, path, body)
    assert (reply.status, reply.code, reply.json["detail"]) == (404, "not_found", detail)


async def test_a_name_that_is_repeated_is_cut_and_escaped(front: Front) -> None:
    """It is somebody's text, and ends in a terminal."""
    reply = await front.call("GET", f"/v1/tasks/{'x' * 4000}")
    assert len(reply.json["detail"]) < 200
    reply = await front.call("GET", "/v1/tasks/%E2%80%AEabc")
    assert reply.json["detail"] == "task '\\u202eabc' was not found"


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"typ": "a.b"}, "typ is not a known field; did you mean type?; type is required"),
        (TASK | {"priorty": 1}, "priorty is not a known field; did you mean priority?"),
        (
            TASK | {"retry": {"max_attempt": 1}},
            "retry.max_attempt is not a known field; did you mean max_attempts?",
        ),
        (TASK | {"colour": 1}, "colour is not a known field"),
        (TASK | {"run_at": "2100-01-01T00:00:00Z"}, "delay_s: give run_at or delay_s, not both"),
    ],
)
async def test_a_wrong_field_is_named_with_its_reason(
    front: Front, body: dict[str, Any], detail: str
) -> None:
    """`/cron is wrong` says nothing; the reason stood elsewhere, or nowhere."""
    reply = await front.call("POST", "/v1/tasks", body)
    assert (reply.status, reply.code) == (422, "invalid")
    assert detail in reply.json["detail"]


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/v1/tasks?stat=READY", "stat is not a known parameter; did you mean state?"),
        ("/v1/tasks?lmit=3&state=NOPE", "lmit is not a known parameter; did you mean limit?"),
        ("/v1/tasks?tennant=a", "tennant is not a known parameter; did you mean tenant?"),
        (f"/v1/tasks/{MISSING}?tenent=a", "tenent is not a known parameter; did you mean tenant?"),
        (f"/v1/tasks/{MISSING}?colour=1", "colour is not a known parameter"),
    ],
)
async def test_a_mistyped_parameter_gets_a_hint(front: Front, path: str, detail: str) -> None:
    """Most mistakes are one letter."""
    reply = await front.call("GET", path)
    assert (reply.status, reply.code, reply.json["detail"]) == (400, "invalid_query", detail)


async def test_a_wrong_rule_is_said_in_one_sentence(front: Front) -> None:
    """It read `/cron is wrong (/cron minute: ...)`."""
    schedule = {"name": "n", "cron": "61 * * * *", "task": {"type": "a"}}
    problem = (await front.call("POST", "/v1/schedules", schedule)).json
    assert problem["detail"] == f"cron: {problem['errors'][0]['detail']}"
    said = str(ApiError(422, problem, None))
    assert said == f"invalid: {problem['detail']}"


def test_the_first_problems_are_said_and_the_others_counted() -> None:
    """A batch of a thousand wrong tasks must not become a page of text."""
    problems = [Problem(f"/tasks/{n}/type", "is required") for n in range(SENTENCES_MAX + 2)]
    said = [f"tasks[{n}].type is required" for n in range(SENTENCES_MAX)]
    assert invalid(problems).detail == "; ".join([*said, "and 2 more"])
    assert len(invalid(problems).errors) == SENTENCES_MAX + 2
    assert sentence_of(Problem("", "give filter or ids, and not both")).startswith("give filter")
