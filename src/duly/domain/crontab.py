"""Parser of crontab files: each line as an entry, or the reason why it cannot be imported.

| in the file | what becomes of it |
|---|---|
| `CRON_TZ=`, else `TZ=` | the time zone of the lines below it |
| another `NAME=value` | part of the environment of the lines below it |
| `%` in a command | ends the command; what follows is its input, each further `%` a new line |
| `@reboot` | refused: it names no time |

Nothing here reads a file or knows how a command is run.
"""

import re
from dataclasses import dataclass, field

from duly.domain.cron import CronProblem, parse_cron
from duly.domain.zones import find_zone

SETTING = re.compile(r"""(["']?)([A-Za-z_][A-Za-z0-9_]*)\1\s*=\s*(.*)""", re.DOTALL)
MACRO = re.compile(r"(@\S+)\s*(.*)", re.DOTALL)
FIVE_FIELDS = re.compile(r"((?:\S+\s+){4}\S+)(?:\s+(.*))?", re.DOTALL)
USER = re.compile(r"(\S+)\s+(.+)", re.DOTALL)
ZONE_SETTINGS = ("CRON_TZ", "TZ")
TZ_NOTE = "TZ is taken for the time zone of the schedules; some crons only hand it to commands"


@dataclass(frozen=True, slots=True)
class CrontabEntry:
    line: int
    text: str
    cron: str
    timezone: str
    command: str
    user: str | None = None
    # What the command reads, where a % ended it.
    stdin: str | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remark:
    line: int
    text: str
    detail: str


@dataclass(frozen=True, slots=True)
class Crontab:
    entries: list[CrontabEntry] = field(default_factory=list)
    refused: list[Remark] = field(default_factory=list)
    notes: list[Remark] = field(default_factory=list)


class CrontabLineRefused(Exception):
    """Carries the reason out of the parser; never leaves this module."""


def read_crontab(text: str, timezone: str | None, *, has_user: bool = False) -> Crontab:
    """`timezone` is for lines above any setting of it. With `has_user` the command comes after the
    name of a user, as in the crontab of the system."""
    found = Crontab()
    environment: dict[str, str] = {}
    # Not splitlines: cron knows one end of a line, and a form feed in a comment starts no schedule.
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        if setting := SETTING.fullmatch(line):
            environment[setting[2]] = unquoted(setting[3])
            if setting[2] == "TZ" and "CRON_TZ" not in environment:
                found.notes.append(Remark(number, line, TZ_NOTE))
            continue
        try:
            entry = read_line(number, line, zone_of(environment, timezone), has_user=has_user)
        except CrontabLineRefused as reason:
            found.refused.append(Remark(number, line, str(reason)))
            continue
        handed_on = {name: each for name, each in environment.items() if name != "CRON_TZ"}
        found.entries.append(with_input(entry, handed_on))
    return found


def zone_of(environment: dict[str, str], timezone: str | None) -> str | None:
    for name in ZONE_SETTINGS:
        if environment.get(name):
            return environment[name].removeprefix(":")
    return timezone


def unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def read_line(number: int, line: str, timezone: str | None, *, has_user: bool) -> CrontabEntry:
    macro = MACRO.fullmatch(line)
    if macro is not None and macro[1].lower() == "@reboot":
        raise CrontabLineRefused("@reboot names no time: start it with the machine")
    split = macro or FIVE_FIELDS.fullmatch(line)
    if split is None:
        raise CrontabLineRefused("it is neither a setting nor five fields and a command")
    cron, command = " ".join(split[1].split()), split[2] or ""
    parsed = parse_cron(cron)
    if isinstance(parsed, CronProblem):
        raise CrontabLineRefused(f"{parsed.field}: {parsed.reason}")
    if timezone is None:
        raise CrontabLineRefused(
            "its time zone is not known: give --timezone, or CRON_TZ in the file"
        )
    if find_zone(timezone) is None:
        raise CrontabLineRefused(f"{timezone} is not the IANA name of a time zone")
    user = None
    if has_user:
        named = USER.fullmatch(command)
        if named is None:
            raise CrontabLineRefused("a user and a command are expected after the time")
        user, command = named[1], named[2]
    if not command:
        raise CrontabLineRefused("it has no command")
    return CrontabEntry(number, line, cron, timezone, command, user)


def with_input(entry: CrontabEntry, environment: dict[str, str]) -> CrontabEntry:
    """Its command as the shell gets it, apart from what the command reads."""
    parts = [part.replace("\\%", "%") for part in re.split(r"(?<!\\)%", entry.command)]
    return CrontabEntry(
        line=entry.line,
        text=entry.text,
        cron=entry.cron,
        timezone=entry.timezone,
        command=parts[0].rstrip(),
        user=entry.user,
        stdin="\n".join(parts[1:]) if len(parts) > 1 else None,
        environment=environment,
    )
