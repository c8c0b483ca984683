"""A key's bound on calls a second: of any kind, on all nodes together."""

import pytest

from duly.api.problems import ApiProblem
from duly.api.rate_limit import RequestRates
from tests.api.conftest import Front

# So slow that none comes back while a test runs.
SLOW = 0.01


async def make_limited(front: Front, rate: float | None) -> tuple[str, str]:
    asked = {"name": "limited", "role": "producer", "request_rate": rate}
    made = await front.call("POST", "/v1/keys", asked)
    assert (made.status, made.json["request_rate"]) == (201, rate)
    return made.json["id"], made.json["key"]


async def test_a_limited_key_is_refused_past_its_rate_reads_too(front: Front) -> None:
    """A reader in a loop costs as much as a submitter, and no submit rate bounds it."""
    _, key = await make_limited(front, SLOW)
    assert (await front.call("GET", "/v1/tasks", key=key)).status == 200
    for method, path in (("GET", "/v1/tasks"), ("POST", "/v1/tasks")):
        reply = await front.call(method, path, key=key)
        assert (reply.status, reply.code) == (429, "rate_limited")
        assert 90 <= int(reply.headers["Retry-After"]) <= 100
    assert (await front.call("GET", "/v1/tasks", key=front.producer)).status == 200


async def test_a_bound_is_set_changed_and_taken_away(front: Front) -> None:
    """In an incident there is no time to make the caller use another key."""
    key_id, key = await make_limited(front, None)
    for _ in range(3):
        assert (await front.call("GET", "/v1/tasks", key=key)).status == 200
    path = f"/v1/keys/{key_id}"
    changed = await front.call("PATCH", path, {"request_rate": SLOW})
    assert (changed.status, changed.json["request_rate"]) == (200, SLOW)
    statuses = [(await front.call("GET", "/v1/tasks", key=key)).status for _ in range(2)]
    assert statuses == [200, 429]
    rotated = await front.call("POST", f"{path}/rotate", {})
    assert rotated.json["request_rate"] == SLOW
    assert (await front.call("PATCH", path, {"request_rate": None})).status == 200
    assert (await front.call("GET", "/v1/tasks", key=key)).status == 200
    for wrong in (0, -1, 1e7, "fast"):
        assert (await front.call("PATCH", path, {"request_rate": wrong})).status == 422
    assert (await front.call("PATCH", path, {})).status == 422
    assert (await front.call("PATCH", path, {"request_rate": 1}, key=front.producer)).status == 403
    assert (
        await front.call("PATCH", path, {"request_rate": 1}, key=front.other_admin)
    ).status == 404


async def test_a_key_has_one_rate_on_all_nodes(front: Front) -> None:
    """A limit for each process is no limit."""
    key_id, _ = await make_limited(front, 5.0)
    nodes = [RequestRates(front.database, front.environment) for _ in range(4)]
    admitted = 0
    for number in range(40):
        try:
            await nodes[number % 4].admit(key_id, 5.0)
        except ApiProblem:
            continue
        admitted += 1
    # A second's worth, and what came back meanwhile on a busy machine.
    assert 5 <= admitted < 20


async def test_the_bucket_goes_with_its_key(front: Front) -> None:
    """What nobody deletes grows for ever."""
    key_id, key = await make_limited(front, SLOW)
    await front.call("GET", "/v1/tasks", key=key)
    assert len(await front.database.fetch("SELECT FROM duly.request_tokens")) == 1
    await front.database.fetch("DELETE FROM duly.api_keys WHERE id = $1", key_id)
    assert await front.database.fetch("SELECT FROM duly.request_tokens") == []
    rates = RequestRates(front.database, front.environment)
    await rates.admit(key_id, SLOW)


async def test_a_refusal_names_the_rate(front: Front) -> None:
    """The answer has to name which of the bounds it was."""
    key_id, _ = await make_limited(front, SLOW)
    rates = RequestRates(front.database, front.environment)
    await rates.admit(key_id, SLOW)
    with pytest.raises(ApiProblem) as refused:
        await rates.admit(key_id, SLOW)
    assert refused.value.detail == "the key may make 0.01 calls a second"
