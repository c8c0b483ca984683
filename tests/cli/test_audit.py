"""`duly audit` and `duly webhook-secrets` against a real front door."""

from tests.api.conftest import Front
from tests.cli.conftest import CommandLine


async def test_the_audit_is_listed_filtered_and_continued(duly: CommandLine, front: Front) -> None:
    """Who paused it, and when: only the API knew, at night, with a token to look up first."""
    for name in ("slow", "mail"):
        await duly("pauses", "pause", "pool", name, "--reason", "the provider is down")
    await duly("pauses", "resume", "pool", "mail")
    page = await duly.json("audit", "--action", "pause.set", "--limit", 1)
    (entry,) = page["items"]
    assert entry["action"] == "pause.set"
    older = await duly.json("audit", "--action", "pause.set", "--cursor", page["next_cursor"])
    assert [each["id"] < entry["id"] for each in older["items"]] == [True]
    table = (await duly("audit", "--actor", entry["actor"])).splitlines()
    assert table[0].split() == ["at", "actor", "action", "subject", "detail"]
    assert len(table) == 4
    assert "the provider is down" in table[3]
    await duly("audit", "--action", "No Such", code=1)
    assert await duly("audit", "--action", "nothing.like_it") == ""
    assert duly.said_on_errors == "no entries\n"
    duly.use_key(front.producer)
    assert (await duly.problem("audit"))["code"] == "forbidden"


async def test_a_webhook_secret_is_shown_once_and_deleted_by_consent(duly: CommandLine) -> None:
    """Deleted by a typing mistake, every receiver refuses every webhook within seconds."""
    made = await duly.json("webhook-secrets", "create", "--grace", "1h")
    assert made["secret"].startswith("whsec_")
    assert "whsec_" in await duly("webhook-secrets", "create")
    assert duly.said_on_errors == "keep the secret: it is not shown again\n"
    listed = (await duly.json("webhook-secrets", "list"))["items"]
    assert made["id"] in [each["id"] for each in listed]
    assert len(listed) >= 2
    assert all("secret" not in each for each in listed)
    assert made["id"] in await duly("webhook-secrets", "list")
    await duly("webhook-secrets", "delete", made["id"], code=2)
    assert "--yes" in duly.said_on_errors
    gone = f"{made['id']} is deleted\n"
    assert await duly("webhook-secrets", "delete", made["id"], "--yes") == gone
    left = (await duly.json("webhook-secrets", "list"))["items"]
    assert made["id"] not in [each["id"] for each in left]
    problem = await duly.problem("webhook-secrets", "delete", made["id"], "--yes")
    assert problem["code"] == "not_found"
