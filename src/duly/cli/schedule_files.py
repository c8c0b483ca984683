"""`duly schedules apply`: schedules as a file says, with a plan before anything is changed.

What the file says is compared with what stands, field by field; the server judges whatever is new
or changed before anything is applied. Reading a crontab is in schedule_import.py.
"""

import math
import re
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, BinaryIO

import click
import msgspec

from duly.cli.api_session import ApiSession, Json, over_api, path
from duly.cli.options import SHOWN_MAX, yes_flag
from duly.cli.output import clean, confirm, note, progress
from duly.cli.schedule_fields import definition_of
from duly.cli.values import read_bounded
from duly.client.errors import ApiError, Unavailable
from duly.client.schedule_plan import FIELDS, differences

SIGNS = {"create": "+", "change": "~", "delete": "-", "refused": "!"}


@click.command("apply")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@click.option("--prune", is_flag=True, help="Delete all schedules of the tenant not in the file.")
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@yes_flag
@over_api
def apply(session: ApiSession, file: BinaryIO, prune: bool, dry_run: bool, yes: bool) -> int:
    """Make the schedules as FILE says (TOML; - is standard input), after showing what would change.

    \b
    [[schedule]]
    name = "nightly report"
    cron = "0 2 * * *"
    timezone = "Europe/Berlin"
    task = { type = "report.write", target = { pool = "reports" } }

    Fields are those of the API; what is not said has its default. Run again, it changes nothing.
    """
    wanted = read_definitions(read_bounded(file))
    return apply_definitions(session, wanted, prune=prune, dry_run=dry_run, yes=yes)


def apply_definitions(
    session: ApiSession, wanted: list[Json], *, prune: bool, dry_run: bool, yes: bool, **more: Any
) -> int:
    """Exit code 1 if something was refused: before anything was changed, or on the way. `more` is
    part of the answer for programs."""
    steps = make_plan(session, wanted, prune=prune)
    is_refused = any(step["action"] == "refused" for step in steps)
    work = [step for step in steps if step["action"] in ("create", "change", "delete")]
    if not session.as_json:
        print_plan(steps, prune=prune)
    if is_refused or dry_run or not work:
        session.show(
            {**report_of(steps, applied=False), **more}, lambda _: print_stop(is_refused=is_refused)
        )
        return 1 if is_refused else 0
    confirm(f"apply {len(work):,} changes?", yes=yes, as_json=session.as_json)
    with progress("apply", len(work), is_shown=not session.as_json) as advance:
        for step in work:
            take_step(session, step)
            advance(1)
    failed = [step for step in work if step["action"] == "refused"]
    session.show(
        {**report_of(steps, applied=True), **more},
        lambda _: print_end(len(work) - len(failed), failed),
    )
    return 1 if failed else 0


def report_of(steps: list[Json], *, applied: bool) -> Json:
    said = [{name: each for name, each in step.items() if name != "wanted"} for step in steps]
    return {"applied": applied, "steps": said}


def make_plan(session: ApiSession, wanted: list[Json], *, prune: bool) -> list[Json]:
    steps = []
    with progress("compare", len(wanted), is_shown=not session.as_json) as advance:
        for definition in wanted:
            steps.append(plan_one(session, definition))
            advance(1)
    if prune:
        page = session.page("/v1/schedules", {}, SHOWN_MAX)
        if page["next_cursor"] is not None:
            raise click.UsageError(f"--prune is for at most {SHOWN_MAX:,} schedules")
        names = {definition["name"] for definition in wanted}
        for schedule in page["items"]:
            if schedule["name"] not in names:
                step = {"action": "delete", "name": schedule["name"], "id": schedule["id"]}
                steps.append({**step, "changes": []})
    return steps


def plan_one(session: ApiSession, wanted: Json) -> Json:
    items = session.ask("GET", "/v1/schedules", query={"name": wanted["name"]})["items"]
    step: Json = {"action": "create", "name": wanted["name"], "changes": [], "wanted": wanted}
    if items:
        changes = [each._asdict() for each in differences(definition_of(items[0]), wanted)]
        action = "change" if changes else "unchanged"
        step |= {"action": action, "id": items[0]["id"], "changes": changes}
    if step["action"] != "unchanged":
        try:
            session.ask("POST", "/v1/schedules/preview", {**wanted, "count": 1})
        except ApiError as error:
            refuse(step, error)
    return step


def take_step(session: ApiSession, step: Json) -> None:
    try:
        if step["action"] == "create":
            step["id"] = session.ask("POST", "/v1/schedules", step["wanted"])["id"]
        elif step["action"] == "change":
            session.ask("PUT", path("schedules", step["id"]), step["wanted"])
        else:
            session.ask("DELETE", path("schedules", step["id"]))
    except ApiError as error:
        refuse(step, error)


def refuse(step: Json, error: ApiError) -> None:
    """One that the server does not take; a server that is away is no verdict on it."""
    if isinstance(error, Unavailable):
        raise error
    step |= {"action": "refused", "detail": str(error), "errors": error.errors}


def read_definitions(document: bytes) -> list[Json]:
    """The tables `[[schedule]]`, or `[schedule.NAME]`, in the order of the file."""
    try:
        text = document.decode()
        content = tomllib.loads(text)
    except UnicodeDecodeError:
        raise click.UsageError("the file is not UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise click.UsageError(f"the file is not TOML: {error}") from None
    unknown = sorted(content.keys() - {"schedule"})
    if unknown:
        raise click.UsageError(f"{unknown[0]} is not known: schedules stand under [[schedule]]")
    found = [definition_in(text, *each) for each in tables_of(content.get("schedule", []))]
    if not found:
        raise click.UsageError("the file has no [[schedule]]")
    names = [definition["name"] for definition in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise click.UsageError(f"the schedule {twice[0]} is in the file twice")
    return found


def tables_of(tables: Any) -> Iterator[tuple[int, str, Any]]:
    """Each with its number and what it is called in the file."""
    if isinstance(tables, dict):
        for number, (name, table) in enumerate(tables.items()):
            yield number, name, {"name": name, **table} if isinstance(table, dict) else table
    elif isinstance(tables, list):
        for number, table in enumerate(tables):
            yield number, "", table
    else:
        raise click.UsageError("schedule is not a table: write [[schedule]]")


def definition_in(text: str, number: int, key: str, table: Any) -> Json:
    place = header_line(text, number, key)
    if not isinstance(table, dict):
        raise click.UsageError(f"line {place}: a schedule is a table of its fields")
    called = f"schedule {table['name']}" if table.get("name") else "a schedule"
    for name in table:
        if name not in FIELDS:
            close = get_close_matches(name, FIELDS, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            where = f"line {field_line(text, place, name)}: {called}"
            raise click.UsageError(f"{where}: {name} is not a field of a schedule{hint}")
    for name in ("name", "task"):
        if name not in table:
            raise click.UsageError(f"line {place}: {called}: {name} is missing")
    if not isinstance(table["name"], str):
        raise click.UsageError(f"line {place}: name is not a text")
    definition: Json = msgspec.to_builtins(table)
    if has_strange_number(definition):
        raise click.UsageError(f"line {place}: {called}: JSON has no inf and no nan")
    return definition


def header_line(text: str, number: int, key: str) -> int:
    """Where the table begins; 1 if it is written in a way that is not looked for."""
    name = re.escape(key)
    header = rf"\[\s*schedule\s*\.\s*[\"']?{name}[\"']?\s*\]" if key else r"\[\[\s*schedule\s*\]\]"
    lines = [n for n, line in enumerate(text.splitlines(), 1) if re.match(rf"\s*{header}", line)]
    place = 0 if key else number
    return lines[place] if place < len(lines) else 1


def field_line(text: str, first: int, name: str) -> int:
    for number, line in enumerate(text.splitlines()[first - 1 :], first):
        if re.match(rf"\s*[\"']?{re.escape(name)}[\"']?\s*[.=]", line):
            return number
    return first


def has_strange_number(value: Any) -> bool:
    if isinstance(value, dict):
        return any(has_strange_number(each) for each in value.values())
    if isinstance(value, list):
        return any(has_strange_number(each) for each in value)
    return isinstance(value, float) and not math.isfinite(value)


def print_plan(steps: list[Json], *, prune: bool) -> None:
    for step in steps:
        if step["action"] == "unchanged":
            continue
        click.echo(f"{SIGNS[step['action']]} {step['action']} {clean(step['name'])}")
        for change in step["changes"]:
            old, new = shown(change["old"]), shown(change["new"])
            click.echo(f"    {clean(change['field'])}: {old} → {new}")
        if step["action"] == "refused":
            click.echo(f"    {clean(step['detail'])}")
    counts = [
        f"{sum(step['action'] == action for step in steps):,} {word}"
        for action, word in (
            ("create", "to create"),
            ("change", "to change"),
            ("delete", "to delete"),
            ("refused", "refused"),
            ("unchanged", "unchanged"),
        )
        if action == "unchanged" or any(step["action"] == action for step in steps)
    ]
    scope = " (--prune looks at all schedules of the tenant)" if prune else ""
    click.echo(", ".join(counts) + scope)


def shown(value: Any) -> str:
    return clean(msgspec.json.encode(value).decode())


def print_stop(*, is_refused: bool) -> None:
    if is_refused:
        note("nothing was changed")


def print_end(done: int, failed: list[Json]) -> None:
    click.echo(f"{done:,} changes applied")
    for step in failed:
        note(f"{step['name']}: {step['detail']}")
