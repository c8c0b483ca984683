"""`duly tasks` against a real front door: every command, its table, its JSON, its refusals."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from duly.api.task_control import CANCEL_MANY_MAX
from duly.cli import options, task_submit
from duly.cli.main import run
from duly.domain.lanes import Ticket
from duly.domain.states import Outcome, State
from duly.store.finish import Settlement
from duly.store.lease import lease_tasks
from duly.store.settle import Settler
from tests.api.conftest import Front
from tests.api.letters import HOLDER, fail
from tests.cli.conftest import CommandLine

MISSING = "01a1e1c6-79a5-79e0-b8ce-d56541d3d148"
SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=30)
SOON_ELSEWHERE = SOON.astimezone(timezone(timedelta(hours=1))).isoformat()
SOON_TEXT = f"{SOON:%Y-%m-%dT%H:%M:%SZ}"
LOOKS: dict[str, list[str]] = {
    "show": [],
    "cancel": [],
    "run-now": [],
    "explain": [],
    "attempts": [],
    "wait": ["--timeout", "1"],
    "reschedule": ["--priority", "1"],
}


async def submitted(duly: CommandLine, *more: object) -> Any:
    return await duly.json("tasks", "submit", "mail.send", "{}", "--delay", "1h", *more)


async def test_every_option_of_a_submit_arrives(duly: CommandLine) -> None:
    """An option that is dropped on the way is found out when the task runs wrongly."""
    task = await duly.json(
        *("tasks", "submit", "mail.send", '{"n": 12345678901234567890}'),
        *("--run-at", SOON_ELSEWHERE, "--webhook", "https://example.com/hook"),
        *("--header", "X-Team: billing", "--priority", 8, "--max-attempts", 3, "--timeout", "90s"),
        *("--start-by", SOON_TEXT, "--jitter", "1.5m", "--tag", "env:prod"),
        *("--concurrency-key", "c:1", "--concurrency-limit", 2, "--idempotency-key", "welcome-42"),
        *("--tag", "a:b:c"),
    )
    task = await duly.json("tasks", "show", task["id"])
    target = {"url": "https://example.com/hook", "headers": {"X-Team": "billing"}}
    assert timedelta(0) <= datetime.fromisoformat(task["run_at"]) - SOON < timedelta(seconds=90)
    assert task["target"] == target
    assert (task["priority"], task["max_attempts"], task["timeout_s"]) == (8, 3, 90.0)
    assert (task["start_by"], task["jitter_s"]) == (SOON_TEXT, 90.0)
    assert (task["concurrency_key"], task["concurrency_limit"]) == ("c:1", 2)
    assert (task["execution_key"], task["tags"]) == ("welcome-42", {"env": "prod", "a": "b:c"})
    assert task["payload"] == {"n": 12345678901234567890}


async def test_the_url_of_a_webhook_is_not_taken_for_that_of_duly(duly: CommandLine) -> None:
    """In programs `url` is the webhook's: here the API key would go to its host."""
    webhook = ("--url", "https://hooks.example.com/charge")
    for command in ("tasks submit a.b", "schedules create s a.b --every 5m"):
        assert await duly(*command.split(), *webhook, code=2) == ""
        assert "--webhook URL" in duly.said_on_errors


async def test_what_is_said_of_others_like_it_arrives(duly: CommandLine) -> None:
    """Kept in the store, it is of no use to a script that cannot say it."""
    submit = ("tasks", "submit", "report.write", "{}")
    first = await duly.json(*submit, "--unique", '{"period_s": 60}', "--delay", "1h")
    again = await duly.json(*submit, "--unique", '{"period_s": 60}', "--delay", "1h")
    assert first["id"] == again["id"]
    waits = await duly.json(*submit, "--debounce", '{"wait_s": 60}')
    assert waits["state"] == "SCHEDULED"
    limit = ("--throttle", '{"limit": 1, "period_s": 600, "key": "theirs"}')
    tasks = [await duly.json(*submit, *limit) for _ in range(2)]
    assert [each["state"] for each in tasks] == ["READY", "SCHEDULED"]


async def test_a_retry_policy_and_a_pool_arrive(duly: CommandLine) -> None:
    """The same danger, for what excludes the options above."""
    retry = '{"max_attempts": 2, "backoff": "fixed"}'
    task = await duly.json("tasks", "submit", "x", "--pool", "slow", "--retry", retry)
    assert (task["target"], task["max_attempts"]) == ({"pool": "slow"}, 2)
    assert task["retry"]["backoff"] == "fixed"
    callback = '{"type": "y", "target": {"pool": "told"}}'
    told = await duly.json("tasks", "submit", "x", "--pool", "slow", "--callback", callback)
    assert told["callback"] == {"type": "y", "target": {"pool": "told"}}


@pytest.mark.parametrize("source", ["argument", "file", "stdin"])
async def test_a_payload_comes_from_an_argument_a_file_or_standard_input(
    duly: CommandLine, tmp_path: Path, source: str
) -> None:
    """Quoting JSON for a shell is where payloads are broken."""
    text = '{"to": "é"}'
    (tmp_path / "payload.json").write_text(text, "utf-8")
    given = {"argument": text, "file": f"@{tmp_path / 'payload.json'}", "stdin": "-"}[source]
    task = await duly.json("tasks", "submit", "mail.send", given, stdin=text)
    assert (await duly.json("tasks", "show", task["id"]))["payload"] == {"to": "é"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["submit"],
        ["submit", "x", "{"],
        ["submit", "x", "@no-such-file"],
        ["submit", "x", "--delay", "soon"],
        ["submit", "x", "--delay", "-1"],
        ["submit", "x", "--run-at", "2026-12-24T18:00:00"],
        ["submit", "x", "--run-at", "tomorrow"],
        ["submit", "x", "--tag", "env"],
        ["submit", "x", "--header", "a:b"],
        ["submit", "x", "--max-attempts", "2", "--retry", "{}"],
        ["submit", "x", "--from", "no-such-file"],
        ["submit", "x", "--priority", "10"],
        ["cancel"],
        ["cancel", MISSING, "--all"],
        ["cancel", MISSING, "--dry-run"],
        ["list", "--state", "DONE"],
        ["list", "--limit", "0"],
        ["reschedule", MISSING],
        ["reschedule", MISSING, "--delay", "1", "--run-at", SOON_TEXT],
        ["wait", MISSING, "--timeout", "long"],
        ["list", "--url", "localhost"],
    ],
)
def test_what_makes_no_sense_is_exit_code_2_and_asks_nobody(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sent to the server, half of it would be refused and the other half done."""
    monkeypatch.setenv("DULY_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("DULY_API_KEY", "nobody")
    assert run(["tasks", *arguments]) == 2
    out, errors = capsys.readouterr()
    assert (out, "Error:" in errors) == ("", True)
    assert run(["tasks", *arguments, "--json"]) == 2
    out, errors = capsys.readouterr()
    assert (out, msgspec.json.decode(errors)["code"]) == ("", "usage")


async def test_many_are_not_cancelled_unless_somebody_says_so(duly: CommandLine) -> None:
    """A filter that is wider than its author thought, in a script that nobody watches."""
    await submitted(duly)
    problem = await duly.problem("tasks", "cancel", "--type", "mail.send", code=2)
    assert "--yes" in problem["detail"]
    assert len((await duly.json("tasks", "list", "--state", "SCHEDULED"))["items"]) == 1


async def test_a_task_that_is_not_there_is_exit_code_1(duly: CommandLine) -> None:
    """And an id that is a path must not lead to another resource."""
    for command, more in LOOKS.items():
        assert await duly("tasks", command, MISSING, *more, code=1) == ""
        assert duly.said_on_errors == f"duly: not_found: task {MISSING} was not found\n"
        for odd in (MISSING, "../keys", "a b?c#d", "é"):
            problem = await duly.problem("tasks", command, odd, *more)
            assert (problem["status"], problem["code"]) == (404, "not_found"), odd


async def test_a_refusal_names_what_is_wrong(duly: CommandLine) -> None:
    """Without the pointer the user guesses which of ten options it was."""
    await duly("tasks", "submit", "NOT A TYPE", code=1)
    assert duly.said_on_errors.startswith("duly: invalid: ")
    assert "invalid: type: " in duly.said_on_errors
    assert duly.said_on_errors.count("\n") == 1
    problem = await duly.problem("tasks", "submit", "NOT A TYPE")
    assert [error["pointer"] for error in problem["errors"]] == ["/type"]


async def test_a_list_is_narrowed_by_every_filter_and_goes_on_at_its_cursor(
    duly: CommandLine,
) -> None:
    """A filter that is not sent lists, and later cancels, everything."""
    one = await submitted(duly, "--tag", "env:prod")
    two = await duly.json("tasks", "submit", "other", "--delay", "3h")
    now = await duly.json("tasks", "submit", "other")

    async def found(*filters: str) -> list[str]:
        page = await duly.json("tasks", "list", *filters)
        return [item["id"] for item in page["items"]]

    assert await found("--type", "mail.send") == [one["id"]]
    assert await found("--tag", "env:prod") == [one["id"]]
    assert await found("--state", "ready") == [now["id"]]
    assert await found("--created-after", one["created_at"], "--state", "SCHEDULED") == [two["id"]]
    assert await found("--run-before", one["run_at"]) == [now["id"]]
    page = await duly.json("tasks", "list", "--limit", 2)
    assert (len(page["items"]), page["next_cursor"] is None) == (2, False)
    rest = await duly.json("tasks", "list", "--cursor", page["next_cursor"])
    assert len(rest["items"]) == 1
    table = await duly("tasks", "list", "--limit", 2)
    assert f"--cursor {page['next_cursor']}" in duly.said_on_errors
    assert [line.split()[0] for line in table.splitlines()] == [
        "id",
        *(item["id"] for item in page["items"]),
    ]


async def test_a_list_longer_than_a_page_is_fetched_whole(duly: CommandLine) -> None:
    """The server gives at most 200; whoever asked for more must not be given less."""
    lines = '{"type": "x", "delay_s": 60}\n' * 205
    assert (await duly.json("tasks", "submit", "--from", "-", stdin=lines))["stored"] == 205
    assert len((await duly.json("tasks", "list", "--limit", 201))["items"]) == 201
    assert len((await duly.json("tasks", "list", "--limit", 1000))["items"]) == 205
    assert (await duly("tasks", "list", "--type", "none")) == ""
    assert duly.said_on_errors == "no tasks\n"


async def test_a_match_behind_many_others_is_found(
    duly: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ "no tasks" was said of a list whose match was on a later page."""
    monkeypatch.setattr("duly.store.read.STRETCH", 5)
    monkeypatch.setattr("duly.api.tasks.SEARCHED_MAX", 10)
    rare = await submitted(duly)
    lines = '{"type": "x", "delay_s": 60}\n' * 72
    await duly.json("tasks", "submit", "--from", "-", stdin=lines)
    found = await duly.json("tasks", "list", "--type", "mail.send")
    assert [item["id"] for item in found["items"]] == [rare["id"]]
    assert found["next_cursor"] is None
    monkeypatch.setattr("duly.cli.api_session.SEARCH_S_MAX", 0.0)
    assert await duly("tasks", "list", "--type", "mail.send") == ""
    told = duly.said_on_errors.splitlines()
    assert told[0] == "no match yet: 10 searched so far"
    assert told[1].startswith("10 searched so far, continue: --cursor ")
    cursor = told[1].split()[-1]
    monkeypatch.setattr("duly.cli.api_session.SEARCH_S_MAX", 60.0)
    assert rare["id"] in await duly("tasks", "list", "--type", "mail.send", "--cursor", cursor)


async def test_a_list_may_be_ordered_by_creation_or_by_the_next_instant(duly: CommandLine) -> None:
    """Two questions: what was submitted last, and what comes next."""
    late = (await duly.json("tasks", "submit", "x", "--delay", "2h"))["id"]
    soon = (await duly.json("tasks", "submit", "x", "--delay", "1h"))["id"]

    async def listed(*flags: str) -> list[str]:
        return [item["id"] for item in (await duly.json("tasks", "list", *flags))["items"]]

    newest_first, soonest_first = [soon, late], [soon, late]
    later = (await duly.json("tasks", "submit", "x", "--delay", "3h"))["id"]
    assert await listed() == [later, *newest_first]
    assert await listed("--order", "created") == [later, *newest_first]
    assert await listed("--order", "run_at") == [*soonest_first, later]
    assert await listed("--state", "SCHEDULED") == [*soonest_first, later]
    assert await listed("--state", "SCHEDULED", "--order", "created") == [later, *newest_first]
    await duly("tasks", "list", "--state", "FAILED", "--order", "run_at", code=1)
    assert "only unfinished tasks have an order by run_at" in duly.said_on_errors


async def test_a_task_is_moved_run_now_and_cancelled(duly: CommandLine) -> None:
    """Each must do what it says, and say what it did."""
    task_id = (await submitted(duly))["id"]
    moved = await duly.json("tasks", "reschedule", task_id, "--delay", "2h", "--priority", "9")
    assert (moved["state"], moved["priority"]) == ("SCHEDULED", 9)
    text = await duly("tasks", "reschedule", task_id, "--run-at", SOON_TEXT)
    assert text == f"task {task_id} is SCHEDULED, next at {SOON:%Y-%m-%d %H:%M:%SZ}\n"
    assert (await duly.json("tasks", "run-now", task_id))["state"] == "READY"
    other = (await submitted(duly))["id"]
    both = await duly.json("tasks", "cancel", task_id, other)
    assert {item["state"] for item in both["items"]} == {"CANCELLED"}
    assert await duly("tasks", "cancel", task_id) == f"task {task_id} is CANCELLED\n"
    assert (await duly.problem("tasks", "run-now", task_id))["code"] == "already_terminal"


async def test_many_are_cancelled_in_bites_until_nothing_is_left(
    duly: CommandLine, front: Front
) -> None:
    """More than one batch of running tasks in front must not hide the others, nor loop for ever."""
    running = CANCEL_MANY_MAX + 1
    lines = '{"type": "x"}\n' * running + '{"type": "x", "delay_s": 60}\n' + '{"type": "y"}\n'
    await duly.json("tasks", "submit", "--from", "-", stdin=lines)
    rows = await front.database.fetch("SELECT id FROM duly.tasks WHERE type = 'x' ORDER BY id")
    tickets = [Ticket(row["id"], 0) for row in rows]
    leases = await lease_tasks(front.database, front.environment, HOLDER, tickets, 60.0)
    assert len(leases) == running
    look = await duly.json("tasks", "cancel", "--type", "x", "--dry-run")
    assert look | {"matched": CANCEL_MANY_MAX, "cancelled": 0, "has_more": True} == look
    assert await duly("tasks", "cancel", "--type", "x", "--dry-run") == (
        f"more than {CANCEL_MANY_MAX:,} tasks match\n"
    )
    text = await duly("tasks", "cancel", "--type", "x", "--yes")
    assert text == f"1 cancelled, {running:,} running and asked to stop\n"
    again = await duly.json("tasks", "cancel", "--type", "x", "--yes")
    assert (again["matched"], again["has_more"]) == (0, False)
    rest = await duly.json("tasks", "cancel", "--all", "--yes")
    assert (rest["cancelled"], rest["cancel_requested"]) == (1, 0)
    assert await duly("tasks", "cancel", "--all", "--yes") == "no unfinished task matches\n"
    assert await duly("tasks", "cancel", "--state", "CANCELLED", "--dry-run") == "0 tasks match\n"


async def test_waiting_ends_with_the_task_or_the_time(duly: CommandLine, front: Front) -> None:
    """A script goes on after it only if the task completed."""
    task_id = (await submitted(duly))["id"]
    problem = await duly.problem("tasks", "wait", task_id, "--timeout", "0.1s")
    assert problem["code"] == "wait_timed_out"
    assert f"task {task_id} has not ended within 0.1 s" in problem["detail"]
    failed = await fail(front)
    assert (await duly.json("tasks", "wait", failed, code=1))["state"] == "FAILED"
    done = (await duly.json("tasks", "submit", "mail.send", "--pool", "p"))["id"]
    tickets = [Ticket(UUID(done), 0)]
    (lease,) = await lease_tasks(front.database, front.environment, HOLDER, tickets, 60.0)
    result = Settlement(lease.id, lease.fence, HOLDER, Outcome.COMPLETED, result="42")
    assert await Settler(front.database, front.environment).settle([result])
    assert (await duly.json("tasks", "wait", done))["result"] == 42


async def test_attempts_and_errors_are_shown_without_what_a_terminal_obeys(
    duly: CommandLine, front: Front
) -> None:
    """An error text comes from somebody else's program, and may try to rewrite the screen."""
    task_id = await fail(front, error="\x1b[2Jboom\x07 [red]\u202e")
    page = await duly.json("tasks", "attempts", task_id)
    assert [item["outcome"] for item in page["items"]] == ["failed"]
    for shown in (await duly("tasks", "attempts", task_id), await duly("tasks", "show", task_id)):
        assert "\\x1b[2Jboom\\x07 [red]\\u202e" in shown
        assert "\x1b" not in shown


async def test_why_a_task_waits_is_told_with_what_would_help(duly: CommandLine) -> None:
    """The first question of every operator."""
    task_id = (await submitted(duly))["id"]
    explained = await duly.json("tasks", "explain", task_id)
    assert explained["binding"] == "not_due"
    text = await duly("tasks", "explain", task_id)
    assert text.startswith(explained["summary"])
    assert f"duly tasks run-now {task_id}" in text
    words = [line.split() for line in text.splitlines()]
    # "paused yes" was read as its opposite.
    assert ["gate", "state"] in [line[:2] for line in words]
    assert ["paused", "open"] in [line[:2] for line in words]
    assert [">", "not_due", "blocked"] in [line[:3] for line in words]


async def test_a_running_attempt_is_shown_with_its_lease(duly: CommandLine, front: Front) -> None:
    """A worker that hangs for an hour left no trace of its start before its end."""
    task_id = (await duly.json("tasks", "submit", "mail.send"))["id"]
    assert await duly("tasks", "attempts", task_id) == ""
    assert duly.said_on_errors == "no attempt yet\n"
    tickets = [Ticket(UUID(task_id), 0)]
    (lease,) = await lease_tasks(front.database, front.environment, HOLDER, tickets, 60.0)
    (running,) = (await duly.json("tasks", "attempts", task_id))["items"]
    assert (running["outcome"], running["attempt"], running["fence"]) == ("running", 1, 1)
    assert running["holder"] == str(HOLDER)
    assert datetime.fromisoformat(running["started_at"]) == lease.started_at
    assert datetime.fromisoformat(running["lease_until"]) == lease.lease_until
    assert "ended_at" not in running
    shown = await duly("tasks", "attempts", task_id)
    assert "running" in shown
    settlement = Settlement(lease.id, lease.fence, HOLDER, Outcome.COMPLETED)
    await Settler(front.database, front.environment).settle([settlement])
    (ended,) = (await duly.json("tasks", "attempts", task_id))["items"]
    assert (ended["outcome"], ended["fence"], "lease_until" in ended) == ("completed", 1, False)


async def test_tasks_are_erased_after_a_preview(duly: CommandLine) -> None:
    """What cannot be undone is shown first, asked about, and never done by a slip."""
    ids = [(await submitted(duly, "--tag", "person:ada"))["id"] for _ in range(3)]
    live = (await submitted(duly, "--tag", "person:ada"))["id"]
    await duly("tasks", "cancel", *ids)
    assert await duly("tasks", "erase", "--tag", "person:ada", "--dry-run") == (
        "3 ended tasks match\n1 unfinished and not erased: cancel them first\n"
    )
    await duly("tasks", "erase", ids[0], code=2)
    await duly("tasks", "erase", code=2)
    await duly("tasks", "erase", ids[0], "--type", "x", code=2)
    assert "payload" in await duly.json("tasks", "show", ids[0])
    assert await duly("tasks", "erase", ids[0], "--yes") == "1 erased\n"
    told = await duly.json("tasks", "erase", "--tag", "person:ada", "--yes")
    assert (told["erased"], told["unfinished"], told["has_more"]) == (2, 1, False)
    for task_id in ids:
        task = await duly.json("tasks", "show", task_id)
        assert task["purged"]
        assert "payload" not in task
    await duly("tasks", "erase", live, "--yes", code=1)
    assert "cancel it first" in duly.said_on_errors
    await duly("tasks", "cancel", live)
    assert await duly("tasks", "erase", "--whole-tenant", "default", "--yes") == "1 erased\n"


async def test_many_tasks_are_submitted_from_a_file_and_the_bad_lines_are_named(
    duly: CommandLine, tmp_path: Path
) -> None:
    """One bad line must neither stop the others nor go unnoticed."""
    good = '{"type": "bulk", "delay_s": 60}'
    lines = [good] * (task_submit.BATCH_MAX + 3)
    lines[1] = '{"type": "bulk", "priority": 99}'
    lines[2] = "nonsense"
    lines[task_submit.BATCH_MAX + 1] = "[1]"
    lines.insert(4, "")
    path = tmp_path / "tasks.ndjson"
    path.write_text("\n".join(lines))
    report = await duly.json("tasks", "submit", "--from", path, code=1)
    assert report["stored"] == task_submit.BATCH_MAX
    refused = {item["line"]: item["pointer"] for item in report["refused"]}
    assert refused == {2: "/priority", 3: "", task_submit.BATCH_MAX + 3: ""}
    assert await duly("tasks", "submit", "--from", path, "--skip", 3, code=1) == (
        f"{task_submit.BATCH_MAX - 1:,} tasks stored\n"
    )
    assert duly.said_on_errors == f"line {task_submit.BATCH_MAX + 3}: is not an object\n"
    await duly("tasks", "submit", "x", "--from", path, code=2)
    await duly("tasks", "submit", "--from", path, "--priority", 1, code=2)


async def test_a_line_that_is_too_long_is_refused_before_it_is_read(duly: CommandLine) -> None:
    """A file without line ends would be read into memory whole."""
    line = "x" * (task_submit.LINE_BYTES_MAX + 1)
    await duly("tasks", "submit", "--from", "-", stdin=line, code=2)
    assert "line 1 has more than" in duly.said_on_errors


async def test_a_bulk_that_breaks_off_says_how_to_go_on(duly: CommandLine) -> None:
    """Otherwise the user submits the first half twice, or the second half never."""
    await duly("tenants", "create", "small", "--stored-max", task_submit.BATCH_MAX)
    lines = '{"type": "x", "delay_s": 60}\n' * (task_submit.BATCH_MAX + 1)
    duly.patch.setattr("duly.client.wire.RETRY_AFTER_MAX_S", 0.0)
    await duly("tasks", "submit", "--from", "-", "--tenant", "small", stdin=lines, code=1)
    where, problem = duly.said_on_errors.splitlines()
    assert where == f"{task_submit.BATCH_MAX} tasks are stored; go on with --skip 500"
    assert problem.startswith("duly: quota_exceeded: ")


def test_the_states_that_can_be_asked_for_are_all_there_are() -> None:
    """The command line may not import the server's list, so a new state is easily forgotten."""
    assert set(options.STATES) == set(State)
