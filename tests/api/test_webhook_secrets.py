"""Webhook secrets over HTTP, and where a webhook may go, as told at submit."""

from base64 import b64decode

import pytest

from duly.store.webhook_secrets import SECRETS_PER_TENANT_MAX, read_or_make_secrets
from tests.api.conftest import Front

PATH = "/v1/webhook-secrets"


async def test_a_secret_is_shown_once_and_signs(front: Front) -> None:
    """A list that shows secrets makes every admin's screen a leak."""
    reply = await front.call("POST", PATH, {})
    assert reply.status == 201
    text = reply.json["secret"]
    assert text.startswith("whsec_")
    secret = b64decode(text.removeprefix("whsec_"))
    signing = await read_or_make_secrets(front.database, front.environment, front.tenant.id)
    assert signing == [secret]
    listed = await front.call("GET", PATH)
    (item,) = listed.json["items"]
    assert item == {name: value for name, value in reply.json.items() if name != "secret"}
    assert item["expires_at"] is None
    for shown in (listed, await front.call("GET", "/v1/audit")):
        assert text.encode() not in shown.body


async def test_making_another_lets_the_one_before_sign_on(front: Front) -> None:
    """Without a while in which both sign, every rotation is an outage."""
    first = (await front.call("POST", PATH)).json
    second = (await front.call("POST", PATH, {"grace_s": 60})).json
    items = (await front.call("GET", PATH)).json["items"]
    assert [item["id"] for item in items] == [second["id"], first["id"]]
    assert items[0]["expires_at"] is None
    assert items[1]["expires_at"] is not None
    await front.call("POST", PATH, {"grace_s": 0})
    assert len((await front.call("GET", PATH)).json["items"]) == 1


async def test_a_repeated_call_makes_one_secret_and_does_not_show_it_again(front: Front) -> None:
    """A retry after a lost answer must not rotate twice, nor keep the secret in another table."""
    headers = {"Idempotency-Key": "once"}
    first = await front.call("POST", PATH, {}, headers=headers)
    again = await front.call("POST", PATH, {}, headers=headers)
    assert again.json == first.json | {"secret": None}
    assert len((await front.call("GET", PATH)).json["items"]) == 1


async def test_a_deleted_secret_is_gone_at_once(front: Front) -> None:
    """It leaked: there is no while."""
    made = (await front.call("POST", PATH)).json
    path = f"{PATH}/{made['id']}"
    assert (await front.call("DELETE", path, key=front.other_admin)).code == "not_found"
    assert (await front.call("DELETE", path)).status == 204
    assert (await front.call("DELETE", path)).code == "not_found"
    assert (await front.call("DELETE", f"{PATH}/A%20b")).code == "not_found"
    assert (await front.call("GET", PATH)).json["items"] == []


async def test_they_are_for_admins_and_each_tenants_own(front: Front) -> None:
    """With the secret, every webhook of the tenant can be forged."""
    await front.call("POST", PATH)
    for key in (front.producer, front.worker, front.operator):
        assert (await front.call("GET", PATH, key=key)).code == "forbidden"
        assert (await front.call("POST", PATH, key=key)).code == "forbidden"
    assert (await front.call("GET", PATH, key=front.other_admin)).json["items"] == []


async def test_making_and_deleting_is_audited(front: Front) -> None:
    """Who rotated what, and when, is the first question after an incident."""
    made = (await front.call("POST", PATH, {"grace_s": 5})).json
    await front.call("DELETE", f"{PATH}/{made['id']}")
    items = (await front.call("GET", "/v1/audit")).json["items"]
    noted = {(item["action"], item["subject"]) for item in items}
    assert {
        ("webhook_secret.create", made["id"]),
        ("webhook_secret.delete", made["id"]),
    } <= noted


async def test_too_many_and_out_of_bounds_are_refused(front: Front) -> None:
    """Each secret costs every request; a grace of years is no rotation."""
    for grace_s in (-1, 1e9):
        assert (await front.call("POST", PATH, {"grace_s": grace_s})).status == 422
    for _ in range(SECRETS_PER_TENANT_MAX):
        assert (await front.call("POST", PATH)).status == 201
    assert (await front.call("POST", PATH)).code == "too_many"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://user@example.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com:22/",
        "https://[::ffff:10.0.0.1]/",
        "https://localhost/",
    ],
)
async def test_a_url_that_may_not_be_called_is_refused_at_submit(front: Front, url: str) -> None:
    """Told at submit it is mended in a minute; told by a dead letter, in a week."""
    asked = {"type": "t", "target": {"url": url}}
    reply = await front.call("POST", "/v1/tasks", asked)
    assert (reply.status, reply.code) == (422, "invalid")
    assert [error["pointer"] for error in reply.json["errors"]] == ["/target/url"]
    reply = await front.call("POST", "/v1/tasks/batch", {"tasks": [{"type": "t"}, asked]})
    assert [error["pointer"] for error in reply.json["errors"]] == ["/tasks/1/target/url"]
    defaults = {"defaults": {"target": {"url": url}}}
    reply = await front.call("PUT", "/v1/task-types/t", defaults)
    assert [error["pointer"] for error in reply.json["errors"]] == ["/defaults/target/url"]
    assert await front.database.fetch("SELECT 1 FROM duly.tasks") == []


@pytest.mark.parametrize("name", ["Host", "Content-Length", "webhook-id", "Duly-Fence"])
async def test_a_header_of_ours_is_refused_at_submit(front: Front, name: str) -> None:
    """Silently dropped, it would be looked for at the receiver for hours."""
    target = {"url": "https://example.com/", "headers": {name: "1"}}
    reply = await front.call("POST", "/v1/tasks", {"type": "t", "target": target})
    assert [error["pointer"] for error in reply.json["errors"]] == ["/target/headers"]


async def test_a_policy_says_whether_refusals_are_tried_again(front: Front) -> None:
    """Lost on the way to the row, the task would be rejected all the same."""
    task = {"type": "t", "retry": {"retry_4xx": True}, "target": {"url": "https://example.com/"}}
    made = (await front.call("POST", "/v1/tasks", task)).json
    read = (await front.call("GET", f"/v1/tasks/{made['id']}")).json
    assert read["retry"]["retry_4xx"] is True
