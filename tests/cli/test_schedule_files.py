"""`duly schedules apply` and `import`: what a file says is what stands, and nothing by accident."""

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from duly.api.wire import RetryOptions
from duly.client.schedule_plan import RETRY_DEFAULTS
from tests.api.conftest import Front
from tests.cli.conftest import CommandLine
from tests.cli.terminal import terminal

NIGHTLY = """
[[schedule]]
name = "nightly"
cron = "0 2 * * *"
timezone = "Europe/Berlin"
start_at = 2097-01-01T01:00:00+01:00
exclude_dates = [2097-12-25, 2097-12-24]
jitter_s = 30

[schedule.task]
type = "report.write"
payload = { kind = "daily", to = ["a", "b"], share = 0.5 }
target = { pool = "reports" }
retry = { max_attempts = 3 }
tags = { env = "prod" }
"""
OFTEN = """
[[schedule]]
name = "often"
every_s = 300
task = { type = "beat", target = { url = "https://example.com/hook", headers = {} } }
"""
CRONTAB = """
MAILTO=ops@example.com
0 2 * * * /usr/local/bin/backup.sh --all
@reboot /usr/bin/start
*/5 * * * * /usr/bin/beat "x" && date +\\%F
CRON_TZ=America/New_York
*/5 * * * * /opt/beat "x" && date +\\%F
@daily mail me%Hello
61 * * * * never
"""


def write(folder: Path, text: str) -> Path:
    file = folder / "schedules.toml"
    file.write_text(text)
    return file


async def names(duly: CommandLine) -> list[str]:
    found = await duly.json("schedules", "list")
    return sorted(item["name"] for item in found["items"])


def actions(report: Any) -> dict[str, str]:
    return {step["name"]: step["action"] for step in report["steps"]}


async def test_a_file_is_applied_and_then_says_that_nothing_changed(
    duly: CommandLine, tmp_path: Path
) -> None:
    """A second run that changes something is a deployment that edits schedules for ever."""
    file = write(tmp_path, NIGHTLY + OFTEN)
    plan = await duly("schedules", "apply", file, "--dry-run")
    assert plan == "+ create nightly\n+ create often\n2 to create, 0 unchanged\n"
    assert await names(duly) == []
    await duly("schedules", "apply", file, code=2)
    assert await names(duly) == []
    assert (await duly("schedules", "apply", file, "--yes")).endswith("2 changes applied\n")
    made = await duly.json("schedules", "show", "nightly")
    assert (made["start_at"], made["jitter_s"]) == ("2097-01-01T00:00:00Z", 30)
    assert made["exclude_dates"] == ["2097-12-24", "2097-12-25"]
    assert made["task"]["payload"] == {"kind": "daily", "to": ["a", "b"], "share": 0.5}
    assert await duly("schedules", "apply", file, "--yes") == "2 unchanged\n"
    report = await duly.json("schedules", "apply", file)
    assert actions(report) == {"nightly": "unchanged", "often": "unchanged"}


async def test_a_change_is_shown_field_by_field_and_replaces_the_rest(
    duly: CommandLine, tmp_path: Path
) -> None:
    """Who approves a plan approves what it shows; the rest must stay."""
    await duly("schedules", "apply", write(tmp_path, NIGHTLY + OFTEN), "--yes")
    changed = NIGHTLY.replace("0 2 *", "30 3 *").replace('"daily"', '"weekly"')
    changed = changed.replace("jitter_s = 30\n", "").replace('tags = { env = "prod" }', "")
    file = write(tmp_path, changed + OFTEN)
    plan = await duly("schedules", "apply", file, "--dry-run")
    assert plan.splitlines() == [
        "~ change nightly",
        '    cron: "0 2 * * *" → "30 3 * * *"',
        "    jitter_s: 30.0 → 0",
        '    task.payload.kind: "daily" → "weekly"',
        '    task.tags.env: "prod" → null',
        "1 to change, 1 unchanged",
    ]
    before = await duly.json("schedules", "show", "nightly")
    await duly("schedules", "apply", file, "--yes")
    after = await duly.json("schedules", "show", "nightly")
    assert (after["id"], after["cron"], after["jitter_s"]) == (before["id"], "30 3 * * *", 0)
    assert after["task"]["payload"]["kind"] == "weekly"
    assert "tags" not in after["task"]


async def test_only_prune_deletes_and_it_says_whose(duly: CommandLine, tmp_path: Path) -> None:
    """A file with half of the schedules must not take the other half away unasked."""
    await duly("schedules", "create", "by hand", "mail", "--every", "1h")
    file = write(tmp_path, OFTEN)
    assert "delete" not in await duly("schedules", "apply", file, "--yes")
    assert await names(duly) == ["by hand", "often"]
    plan = await duly("schedules", "apply", file, "--prune", "--dry-run")
    assert "- delete by hand\n" in plan
    assert "all schedules of the tenant" in plan
    report = await duly.json("schedules", "apply", file, "--prune", "--yes")
    assert actions(report) == {"often": "unchanged", "by hand": "delete"}
    assert await names(duly) == ["often"]


async def test_one_definition_that_is_refused_keeps_all_from_being_applied(
    duly: CommandLine, tmp_path: Path
) -> None:
    """Half a file applied is a state that no file describes."""
    file = write(tmp_path, OFTEN + NIGHTLY.replace("0 2 *", "0 25 *"))
    out = await duly("schedules", "apply", file, "--yes", code=1)
    assert "! refused nightly" in out
    assert "cron: hour: 25 is not within 0 to 23" in out
    assert duly.said_on_errors == "nothing was changed\n"
    assert await names(duly) == []
    report = await duly.json("schedules", "apply", file, "--dry-run", code=1)
    assert actions(report) == {"often": "create", "nightly": "refused"}
    assert report["steps"][1]["errors"][0]["pointer"] == "/cron"


async def test_a_template_that_is_refused_keeps_all_from_being_applied(
    duly: CommandLine, tmp_path: Path
) -> None:
    """A plan that misses a refusal would apply half a file."""
    schema = {"type": "object", "required": ["to"]}
    await duly.front.call("PUT", "/v1/task-types/mail", {"schema": schema})
    for wrong, pointer in (
        (OFTEN.replace('"beat"', '"Beat!"'), "/task/type"),
        (OFTEN.replace('"beat"', '"beat", delay_s = 5'), "/task/delay_s"),
        (OFTEN.replace('"beat"', '"mail", payload = {}'), "/task/payload"),
        (OFTEN.replace("https:", "ftp:"), "/task/target/url"),
        (
            'overlap = "queue_one"'.join(OFTEN.split("every_s = 300", 1)).replace(
                'type = "beat"', 'type = "beat", concurrency_key = "k"'
            )
            + "every_s = 300\n",
            "/task/concurrency_key",
        ),
    ):
        file = write(tmp_path, NIGHTLY + wrong)
        planned = await duly.json("schedules", "apply", file, "--dry-run", code=1)
        assert actions(planned) == {"nightly": "create", "often": "refused"}, wrong
        assert pointer in [error["pointer"] for error in planned["steps"][1]["errors"]]
        await duly("schedules", "apply", file, "--yes", code=1)
        assert await names(duly) == []
    await duly("schedules", "apply", write(tmp_path, OFTEN), "--yes")
    file = write(tmp_path, NIGHTLY + OFTEN.replace('"beat"', '"beat", priority = 99'))
    assert "task.priority: expected" in await duly("schedules", "apply", file, "--yes", code=1)
    assert await names(duly) == ["often"]


async def test_a_change_is_not_refused_for_a_limit_that_came_after_the_schedule(
    duly: CommandLine, tmp_path: Path
) -> None:
    """A plan stricter than the server would keep a whole file back for what it would take."""
    await duly("schedules", "apply", write(tmp_path, OFTEN), "--yes")
    await duly.front.call("PATCH", "/v1/tenants/default", {"schedule_s_min": 3600})
    file = write(tmp_path, OFTEN.replace('"beat"', '"beat", priority = 7'))
    assert (await duly("schedules", "apply", file, "--yes")).endswith("1 changes applied\n")
    file = write(tmp_path, OFTEN.replace("300", "600"))
    assert "every_s fires 600 s apart" in await duly(
        "schedules", "apply", file, "--dry-run", code=1
    )


async def test_a_file_that_makes_no_sense_is_refused_with_its_line(
    duly: CommandLine, tmp_path: Path
) -> None:
    """A misspelt field that is ignored is a policy that never was."""
    task = 'task = { type = "x" }\n'
    for text, said in (
        (NIGHTLY + '[[schedule]]\nname = "a"\n' + task + "crom = 5\n", "line 19: schedule a: crom"),
        ('[schedule."a b"]\n' + task + "jiter_s = 5\n", "line 3: schedule a b: jiter_s"),
        ("[[schedule]]\n" + task, "line 1: a schedule: name is missing"),
        ('[[schedule]]\nname = "a"\n', "line 1: schedule a: task is missing"),
        (OFTEN + OFTEN, "often is in the file twice"),
        ("schedules = 1\n", "schedules is not known"),
        ("schedule = 1\n", "not a table"),
        ("", "no [[schedule]]"),
        ("[[schedule]", "not TOML"),
        (OFTEN.replace('"beat",', '"beat", payload = { n = nan },'), "no inf and no nan"),
    ):
        await duly("schedules", "apply", write(tmp_path, text), "--yes", code=2)
        assert said in " ".join(duly.said_on_errors.split()), text
    await duly("schedules", "apply", write(tmp_path, "x" * 2_000_000), code=2)
    await duly("schedules", "apply", tmp_path / "none.toml", code=2)
    assert await names(duly) == []
    assert "did you mean cron?" in await said_of(duly, tmp_path, "crn")


async def said_of(duly: CommandLine, folder: Path, field: str) -> str:
    text = f'[[schedule]]\nname = "a"\ntask = {{ type = "x" }}\n{field} = 1\n'
    await duly("schedules", "apply", write(folder, text), code=2)
    return duly.said_on_errors


async def test_schedules_may_stand_under_their_names(duly: CommandLine) -> None:
    """Whichever of the two forms a reader knows, it means the same."""
    text = '[schedule.beat]\nevery_s = 60\n[schedule.beat.task]\ntype = "beat"\n'
    await duly("schedules", "apply", "-", "--yes", stdin=text)
    assert await names(duly) == ["beat"]


async def test_a_crontab_becomes_a_file_that_can_be_applied(
    duly: CommandLine, tmp_path: Path
) -> None:
    """What is printed for review must be what is applied."""
    (tmp_path / "crontab").write_text(CRONTAB)
    run = ("schedules", "import", tmp_path / "crontab", "--timezone", "Europe/Berlin")
    text = await duly(*run, "--pool", "shell", code=1)
    said = duly.said_on_errors.splitlines()
    assert [line.split(":")[0] for line in said] == ["line 4 is left out", "line 9 is left out"]
    made = tomllib.loads(text)["schedule"]
    assert [each["name"] for each in made] == [
        "backup.sh --all",
        "beat -x- - date -F",
        "beat -x- - date -F 2",
        "mail me",
    ]
    assert [each["timezone"] for each in made] == ["Europe/Berlin"] * 2 + ["America/New_York"] * 2
    mail = {"MAILTO": "ops@example.com"}
    assert made[1]["task"] == {
        "type": "crontab.run",
        "payload": {"command": '/usr/bin/beat "x" && date +%F', "environment": mail},
        "target": {"pool": "shell"},
    }
    assert made[3]["task"]["payload"]["stdin"] == "Hello"
    assert (await duly("schedules", "apply", write(tmp_path, text), "--yes")).endswith(
        "4 changes applied\n"
    )
    again = await duly.json(*run, "--pool", "shell", "--apply", code=1)
    assert set(actions(again).values()) == {"unchanged"}
    assert [each["line"] for each in again["refused"]] == [4, 9]


async def test_a_crontab_is_read_without_a_server_and_never_in_a_guessed_zone(
    duly: CommandLine, tmp_path: Path, monkeypatch: Any
) -> None:
    """A crontab is read where cron runs; the zone of some laptop is not its zone."""
    monkeypatch.setenv("DULY_URL", "http://127.0.0.1:1")
    (tmp_path / "crontab").write_text("0 2 * * * root backup\n")
    await duly("schedules", "import", tmp_path / "crontab", "--system", code=1)
    assert "time zone is not known" in duly.said_on_errors
    found = await duly.json(
        *("schedules", "import", tmp_path / "crontab", "--system", "--timezone", "UTC"),
        *("--type", "ops.shell", "--webhook", "https://example.com/run"),
    )
    (made,) = found["schedules"]
    assert made["task"] == {
        "type": "ops.shell",
        "payload": {"command": "backup", "user": "root"},
        "target": {"url": "https://example.com/run"},
    }
    assert (found["refused"], found["notes"]) == ([], [])
    both = ("--pool", "a", "--webhook", "https://example.com")
    await duly("schedules", "import", tmp_path / "crontab", *both, code=2)


async def test_an_import_that_cannot_mean_what_it_says_is_refused(
    duly: CommandLine, tmp_path: Path
) -> None:
    """--yes without --apply looks applied, and nothing was; an empty crontab looks imported."""
    file = tmp_path / "crontab"
    file.write_text("0 2 * * * backup\n")
    for flag in ("--dry-run", "--yes"):
        await duly("schedules", "import", file, "--timezone", "UTC", flag, code=2)
        assert "--apply" in duly.said_on_errors
    file.write_text("# nothing yet\nMAILTO=me\n")
    await duly("schedules", "import", file, "--timezone", "UTC", code=2)
    assert "no line that asks for anything" in duly.said_on_errors


async def test_a_person_sees_the_plan_and_is_asked(front: Front, tmp_path: Path) -> None:
    """A plan that is applied while it is being read might as well not be shown."""
    file = write(tmp_path, OFTEN)
    environ = {"DULY_URL": front.url, "DULY_API_KEY": front.admin}

    def answer(text: str) -> str:
        with terminal("schedules", "apply", str(file), environ=environ) as opened:
            opened.shows(r"apply 1 changes\?")
            opened.type(f"{text}\n")
            opened.wait()
            return opened.text

    refused = await asyncio.to_thread(answer, "n")
    assert "+ create often" in refused
    assert (await front.call("GET", "/v1/schedules")).json["items"] == []
    assert "1 changes applied" in await asyncio.to_thread(answer, "y")
    assert len((await front.call("GET", "/v1/schedules")).json["items"]) == 1


def test_an_unsaid_retry_is_the_servers() -> None:
    """With another default here, every run of the file would find a change."""
    assert msgspec.to_builtins(RetryOptions()) == RETRY_DEFAULTS
