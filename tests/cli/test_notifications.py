"""`duly notifications` against a real front door."""

from tests.api.conftest import Front
from tests.cli.conftest import CommandLine


async def test_a_notification_is_set_listed_tested_and_deleted(duly: CommandLine) -> None:
    """Set with curl at three in the morning, it is set wrong."""
    set_it = ("notifications", "set", "ops", "--webhook", "https://hooks.example.com/x")
    made = await duly.json(
        *(*set_it, "--header", "X-Team:ops", "--dead-letters", "--lag", "5m", "--per-minute", "3")
    )
    assert made["to"] == {"url": "https://hooks.example.com/x", "headers": {"X-Team": "ops"}}
    assert (made["dead_letters"], made["missed_schedules"]) == (True, False)
    assert (made["lag_s"], made["per_minute"]) == (300, 3)
    assert "dead letters, lag over 300 s" in await duly("notifications", "list")
    assert "hooks.example.com" in await duly("notifications", "show", "ops")
    sent = await duly.json("notifications", "test", "ops")
    assert (await duly("notifications", "test", "ops")).strip() != sent["task"]
    await duly("notifications", "delete", "ops", code=2)
    assert await duly("notifications", "delete", "ops", "--yes") == "ops is deleted\n"
    await duly("notifications", "list")
    assert duly.said_on_errors == "no notifications\n"


async def test_what_is_wrong_is_said(duly: CommandLine, front: Front) -> None:
    """A notification that was not made is found at the first failure."""
    problem = await duly.problem("notifications", "set", "ops", "--webhook", "https://example.com/")
    assert "needs one of dead_letters" in problem["detail"]
    problem = await duly.problem("notifications", "set", "ops", "--dead-letters")
    assert problem["errors"][0]["pointer"] == "/to"
    problem = await duly.problem(
        *("notifications", "set", "ops", "--dead-letters", "--mail", "a@example.com")
    )
    assert "smtp_url" in problem["detail"]
    duly.use_key(front.producer)
    assert (await duly.problem("notifications", "list"))["code"] == "forbidden"
