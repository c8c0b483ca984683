"""Crontabs as they are found on machines, and what becomes of each line."""

import pytest

from duly.domain.crontab import CrontabEntry, read_crontab

BERLIN = "Europe/Berlin"
FOUND_ON_MACHINES = """
# m h  dom mon dow   command
SHELL=/bin/sh
PATH = "/usr/local/bin:/usr/bin"
MAILTO=""

17 *\t* * *  cd / && run-parts --report /etc/cron.hourly
25 6 * * 1-5  test -x /usr/sbin/anacron || run-parts /etc/cron.daily
  */15 0-6,22,23 * jan-mar Mon  backup --quiet
@daily  rotate
@Weekly\trotate --all
CRON_TZ=America/New_York
30 2 1,15 * sun  report   --kind  "first half"
CRON_TZ='Asia/Tokyo'
0 0 * * 7 sunday
"""


def one(line: str, timezone: str | None = BERLIN, *, has_user: bool = False) -> CrontabEntry:
    found = read_crontab(line, timezone, has_user=has_user)
    assert found.refused == []
    (entry,) = found.entries
    return entry


def reason(line: str, timezone: str | None = BERLIN, *, has_user: bool = False) -> str:
    found = read_crontab(line, timezone, has_user=has_user)
    assert found.entries == []
    (refused,) = found.refused
    assert refused.text == line.strip()
    return refused.detail


def test_a_crontab_is_read_line_by_line() -> None:
    """A line that is lost is a backup that is no longer made."""
    found = read_crontab(FOUND_ON_MACHINES, BERLIN)
    assert found.refused == []
    read = [(each.line, each.cron, each.timezone, each.command) for each in found.entries]
    assert read == [
        (7, "17 * * * *", BERLIN, "cd / && run-parts --report /etc/cron.hourly"),
        (8, "25 6 * * 1-5", BERLIN, "test -x /usr/sbin/anacron || run-parts /etc/cron.daily"),
        (9, "*/15 0-6,22,23 * jan-mar Mon", BERLIN, "backup --quiet"),
        (10, "@daily", BERLIN, "rotate"),
        (11, "@Weekly", BERLIN, "rotate --all"),
        (13, "30 2 1,15 * sun", "America/New_York", 'report   --kind  "first half"'),
        (15, "0 0 * * 7", "Asia/Tokyo", "sunday"),
    ]
    settings = {"SHELL": "/bin/sh", "PATH": "/usr/local/bin:/usr/bin", "MAILTO": ""}
    assert all(each.environment == settings for each in found.entries)


@pytest.mark.parametrize("strange", ["\f", "\v", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\r"])
def test_only_a_line_feed_ends_a_line(strange: str) -> None:
    """What was switched off would fire, or a command would be cut in two."""
    off = read_crontab(f"# off: {strange}5 5 * * * boom\r\n", BERLIN)
    assert (off.entries, off.refused) == ([], [])
    assert one(f"5 5 * * * say a{strange}b\n").command == f"say a{strange}b"


def test_a_setting_holds_from_its_line_on() -> None:
    """A command of the morning with the settings of the evening is another command."""
    found = read_crontab("0 1 * * * a\nX=1\n0 1 * * * b\nX=2\n0 1 * * * c", BERLIN)
    assert [each.environment for each in found.entries] == [{}, {"X": "1"}, {"X": "2"}]


@pytest.mark.parametrize(
    ("command", "run", "stdin"),
    [
        ("date +%F", "date +", "F"),
        (r"date +\%F", "date +%F", None),
        (r"mail me%Hello%World", "mail me", "Hello\nWorld"),
        (r"mail me %50\% off", "mail me", "50% off"),
        ("cat%", "cat", ""),
        (r"echo a\\b", r"echo a\\b", None),
    ],
)
def test_a_percent_sign_ends_the_command(command: str, run: str, stdin: str | None) -> None:
    """Taken as text, `date +%F` does tomorrow what cron never did."""
    entry = one(f"0 1 * * * {command}")
    assert (entry.command, entry.stdin) == (run, stdin)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("@reboot start", "@reboot"),
        ("@Reboot start", "@reboot"),
        ("@every_minute beat", "@every_minute"),
        ("61 * * * * x", "minute: "),
        ("0 0 30 2 * x", "day_of_month: never fires"),
        ("0~30 * * * * x", "minute: "),
        ("*/0 * * * * x", "minute: "),
        ("5-1 * * * * x", "minute: "),
        ("0 0 * * mo x", "day_of_week: "),
        ("0 0 * * *", "no command"),
        ("@daily", "no command"),
        ("0 0 * *", "neither a setting"),
        ("run this", "neither a setting"),
        ("-*/15 * * * * quiet", "minute: "),
        ("٣ * * * * x", "expression: "),
    ],
)
def test_what_cannot_be_taken_says_why(line: str, why: str) -> None:
    """Left out without a word, or taken for something else, it is noticed weeks later."""
    assert why in reason(line)


def test_a_time_zone_is_never_guessed() -> None:
    """Cron means the clock of its machine, which is not ours."""
    assert "time zone is not known" in reason("0 1 * * * x", None)
    assert "Mars/Base" in reason("0 1 * * * x", "Mars/Base")
    found = read_crontab("CRON_TZ=Mars/Base\n0 1 * * * x\nCRON_TZ=UTC\n0 1 * * * y", None)
    assert [each.line for each in found.refused] == [2]
    assert [each.timezone for each in found.entries] == ["UTC"]


def test_tz_stands_in_for_cron_tz_and_is_noted() -> None:
    """Crons differ in what TZ does, so whoever imports has to look."""
    found = read_crontab(
        "TZ=:Asia/Tokyo\n0 1 * * * x\nCRON_TZ=UTC\nTZ=Asia/Seoul\n0 1 * * * y", "UTC"
    )
    assert [each.timezone for each in found.entries] == ["Asia/Tokyo", "UTC"]
    assert found.entries[1].environment == {"TZ": "Asia/Seoul"}
    assert [each.line for each in found.notes] == [1]


def test_the_crontab_of_the_system_names_users() -> None:
    """Taken for a command, the user's name would be run."""
    entry = one("0 1 * * * root /usr/sbin/clean  --all", has_user=True)
    assert (entry.user, entry.command) == ("root", "/usr/sbin/clean  --all")
    macro = one("@daily www-data php job.php%in", has_user=True)
    assert (macro.user, macro.command, macro.stdin) == ("www-data", "php job.php", "in")
    assert "a user and a command" in reason("0 1 * * * root", has_user=True)


@pytest.mark.parametrize("text", ["", "\n\n", "# nothing\n", "A=1\n"])
def test_a_crontab_may_be_empty(text: str) -> None:
    """Nothing to import is not an error."""
    found = read_crontab(text, None)
    assert (found.entries, found.refused) == ([], [])
