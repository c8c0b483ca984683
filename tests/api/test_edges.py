"""Values at the edges of what their types can hold, where libraries overflow or guess."""

from urllib.parse import quote

import pytest

from tests.api.conftest import Front

# Each is a valid instant; in UTC it would lie before year 1 or after year 9999.
OFF_THE_CALENDAR = ["0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59-23:00"]


@pytest.mark.parametrize("instant", OFF_THE_CALENDAR)
async def test_an_instant_that_an_offset_pushes_off_the_calendar_is_no_mistake_of_ours(
    front: Front, instant: str
) -> None:
    """Python cannot even convert it to UTC."""
    task = {"type": "a.b", "delay_s": 3600}
    made = (await front.call("POST", "/v1/tasks", task)).json["id"]
    refused = await front.call("POST", "/v1/tasks", {"type": "a.b", "run_at": instant})
    assert (refused.status, refused.json["errors"][0]["pointer"]) == (422, "/run_at")
    moved = await front.call("PATCH", f"/v1/tasks/{made}", {"run_at": instant})
    assert (moved.status, moved.json["errors"][0]["pointer"]) == (422, "/run_at")
    deadline = await front.call("POST", "/v1/tasks", {"type": "a.b", "start_by": instant})
    assert deadline.status == (422 if instant.startswith("0001") else 201)
    for name in ("created_after", "run_before"):
        listed = await front.call("GET", f"/v1/tasks?{name}={quote(instant)}")
        assert listed.status == 200
        cancelled = await front.call("POST", "/v1/tasks/cancel", {"filter": {name: instant}})
        assert cancelled.status == 200


async def test_one_instant_in_two_spellings_is_one_request(front: Front) -> None:
    """A retry from a machine in another zone would be refused as another request."""
    body = {"type": "a.b", "start_by": "2097-12-24T18:00:00+01:00", "idempotency_key": "k"}
    first = await front.call("POST", "/v1/tasks", body)
    again = await front.call("POST", "/v1/tasks", body | {"start_by": "2097-12-24T17:00:00Z"})
    assert (first.status, again.status) == (201, 200)
    assert again.json["id"] == first.json["id"]
    other = await front.call("POST", "/v1/tasks", body | {"start_by": "2097-12-24T18:00:00Z"})
    assert (other.status, other.code) == (409, "idempotency_mismatch")


@pytest.mark.parametrize("name", ["state", "created_after", "run_before"])
async def test_a_parameter_that_says_null_is_refused(front: Front, name: str) -> None:
    """Taken for nothing, it would list everything instead of what was meant."""
    reply = await front.call("GET", f"/v1/tasks?{name}=null")
    assert (reply.status, reply.code) == (400, "invalid_query")
    assert reply.json["errors"][0]["pointer"] == f"/{name}"


async def test_a_type_may_be_called_null(front: Front) -> None:
    """It is a word like any other."""
    assert (await front.call("POST", "/v1/tasks", {"type": "null"})).status == 201
    assert len((await front.call("GET", "/v1/tasks?type=null")).json["items"]) == 1


async def test_an_answer_without_a_body_is_sent_too(front: Front) -> None:
    """Headers wait for their body to go out together; with HEAD there is none."""
    for _ in range(2):
        reply = await front.call("HEAD", "/healthz", key=None)
        assert (reply.status, reply.body) == (405, b"")
    assert (await front.call("GET", "/healthz", key=None)).status == 200
