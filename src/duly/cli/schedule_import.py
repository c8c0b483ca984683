"""`duly schedules import`: a crontab as schedules, printed as a file for `apply`, or applied.

No server is asked unless it is to be applied.
"""

import re
from typing import Any, BinaryIO

import click
import msgspec

from duly.cli.api_session import ApiSession, Json, connect, given
from duly.cli.options import api_flags, yes_flag
from duly.cli.output import clean, note
from duly.cli.schedule_files import apply_definitions
from duly.cli.values import read_bounded
from duly.domain.crontab import Crontab, CrontabEntry, Remark, read_crontab

TYPE_DEFAULT = "crontab.run"
NAME_CHARACTERS_MAX = 60
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9 ._:-]+")
NAMELESS = "crontab"
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


@click.command("import")
@click.argument("file", type=click.File("rb"), metavar="CRONTAB")
@click.option("--timezone", metavar="ZONE", help="Zone of lines without CRON_TZ.")
@click.option("--system", is_flag=True, help="Lines name a user, as those of /etc/crontab.")
@click.option(
    "--type",
    "task_type",
    metavar="TYPE",
    default=TYPE_DEFAULT,
    show_default=True,
    help="Type of the created tasks.",
)
@click.option("--pool", metavar="NAME", help="The worker pool that runs them.")
@click.option("--webhook", metavar="URL", help="Or the webhook URL.")
@click.option("--apply", "is_applied", is_flag=True, help="Create them instead of printing them.")
@click.option("--dry-run", is_flag=True, help="With --apply, only show the plan.")
@yes_flag
@api_flags
def import_crontab(
    *,
    file: BinaryIO,
    timezone: str | None,
    system: bool,
    task_type: str,
    pool: str | None,
    webhook: str | None,
    is_applied: bool,
    dry_run: bool,
    yes: bool,
    url: str | None,
    api_key: str | None,
    tenant: str | None,
    as_json: bool,
) -> int:
    """Read CRONTAB (- is standard input) and print its schedules as a file for `apply`.

    Each makes tasks with the payload {"command": ...}, and "environment", "stdin" and "user" where
    the crontab has them. Lines that cannot be taken are named, and the exit code is then 1.
    """
    if pool is not None and webhook is not None:
        raise click.UsageError("give --pool or --webhook")
    if (dry_run or yes) and not is_applied:
        raise click.UsageError("--dry-run and --yes go with --apply; without it nothing is changed")
    try:
        text = read_bounded(file).decode()
    except UnicodeDecodeError:
        raise click.UsageError("the crontab is not UTF-8") from None
    found = read_crontab(text, timezone, has_user=system)
    if not found.entries and not found.refused:
        raise click.UsageError("the crontab has no line that asks for anything")
    target = given(pool=pool, url=webhook)
    definitions = make_definitions(found, task_type, target)
    code = 1 if found.refused else 0
    if is_applied:
        if not as_json:
            print_remarks(found)
        with connect(url, api_key) as connection:
            session = ApiSession(connection, tenant, as_json=as_json)
            remarks = remarks_of(found)
            applied = apply_definitions(
                session, definitions, prune=False, dry_run=dry_run, yes=yes, **remarks
            )
        return max(code, applied)
    if as_json:
        report = {"schedules": definitions, **remarks_of(found)}
        click.echo(msgspec.json.encode(report).decode())
    else:
        print_remarks(found)
        click.echo(
            "\n".join(toml_of(*each) for each in zip(found.entries, definitions, strict=True))
        )
    return code


def make_definitions(found: Crontab, task_type: str, target: Json) -> list[Json]:
    names: set[str] = set()
    definitions = []
    for entry in found.entries:
        name = free_name(entry.command, names)
        names.add(name)
        payload = {"command": entry.command} | given(
            user=entry.user, stdin=entry.stdin, environment=entry.environment or None
        )
        task = {"type": task_type, "payload": payload} | given(target=target or None)
        when = {"cron": entry.cron, "timezone": entry.timezone}
        definitions.append({"name": name, **when, "task": task})
    return definitions


def free_name(command: str, taken: set[str]) -> str:
    """The command without its folders, as far as a name can have it; numbered if it is taken."""
    words = " ".join(word.rstrip("/").rpartition("/")[2] for word in command.split())
    text = NOT_IN_A_NAME.sub("-", words).lstrip(" ._:-")[:NAME_CHARACTERS_MAX].rstrip(" -")
    first = name = text or NAMELESS
    number = 1
    while name in taken:
        number += 1
        name = f"{first} {number}"
    return name


def toml_of(entry: CrontabEntry, definition: Json) -> str:
    lines = [f"# line {entry.line}: {clean(entry.text)}", "[[schedule]]"]
    lines += [f"{name} = {toml_value(each)}" for name, each in definition.items() if name != "task"]
    lines.append("[schedule.task]")
    lines += [f"{name} = {toml_value(each)}" for name, each in definition["task"].items()]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """Of texts and tables of texts, which is all that a crontab has."""
    if isinstance(value, dict):
        inner = ", ".join(f"{toml_key(name)} = {toml_value(each)}" for name, each in value.items())
        return f"{{ {inner} }}"
    # JSON leaves the one control character alone that TOML does not.
    return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")


def toml_key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else toml_value(name)


def remarks_of(found: Crontab) -> Json:
    return {
        "refused": [remark_of(each) for each in found.refused],
        "notes": [remark_of(each) for each in found.notes],
    }


def remark_of(remark: Remark) -> Json:
    return {"line": remark.line, "text": remark.text, "detail": remark.detail}


def print_remarks(found: Crontab) -> None:
    """Beside the file, so that it can be redirected."""
    for each in found.notes:
        note(f"line {each.line}: {each.detail}")
    for each in found.refused:
        note(f"line {each.line} is left out: {each.detail}: {each.text}")
