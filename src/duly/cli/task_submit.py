"""`duly tasks submit`: one task from options, or many from a file with a task on each line."""

from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import click
import msgspec
from msgspec import Raw

from duly.cli.api_session import ApiSession, Json, given, over_api
from duly.cli.options import with_flags
from duly.cli.output import counted, note, print_card, progress
from duly.cli.suggestions import TASK_TYPES
from duly.cli.values import duration, instant, json_document, pair
from duly.client.errors import ApiError, Conflict, Invalid, RateLimited, Unreachable

BATCH_MAX = 500
BATCH_BYTES_MAX = 8 * 1024 * 1024
LINE_BYTES_MAX = 256 * 1024
REFUSED_SHOWN_MAX = 20
LEADING = ("id", "state", "type", "run_at")

Line = tuple[int, bytes]

# Of one task: when it runs, and whether it is the same as another.
ONE_TASK_FLAGS = [
    click.option("--delay", type=duration, metavar="DURATION", help="From now on: 90, 5m, 2h, 1d."),
    click.option("--run-at", type=instant, metavar="INSTANT", help="Such as 2026-12-24T18:00:00Z."),
    click.option(
        "--start-by",
        type=instant,
        metavar="INSTANT",
        help="Latest start; later it fails as expired.",
    ),
    click.option("--jitter", type=duration, metavar="DURATION", help="Random delay up to this."),
    click.option("--idempotency-key", metavar="TEXT", help="Equal keys give one task."),
    click.option(
        "--callback",
        type=json_document,
        metavar="JSON",
        help='Told of its end: {"type": ..., "target": ...}.',
    ),
    click.option(
        "--unique", type=json_document, metavar="JSON", help='Once in a time: {"period_s": 3600}.'
    ),
    click.option(
        "--debounce", type=json_document, metavar="JSON", help='After the last: {"wait_s": 60}.'
    ),
    click.option(
        "--throttle",
        type=json_document,
        metavar="JSON",
        help='At a rate: {"limit": 2, "period_s": 1}.',
    ),
]
ONE_TASK_OPTIONS = (
    *("delay", "run_at", "start_by", "jitter", "idempotency_key", "callback"),
    *("unique", "debounce", "throttle"),
)
# Of a task, or of all that a schedule makes.
TEMPLATE_FLAGS = [
    click.option("--pool", metavar="NAME", help="The worker pool that runs it."),
    click.option("--webhook", metavar="URL", help="Or the webhook URL."),
    click.option(
        "--header", type=pair, multiple=True, metavar="NAME:VALUE", help="Sent to the webhook."
    ),
    click.option("--priority", type=click.IntRange(0, 9), help="0 to 9, higher is more urgent."),
    click.option(
        "--max-attempts", type=click.IntRange(min=1), metavar="N", help="Attempts at most."
    ),
    click.option("--retry", type=json_document, metavar="JSON", help="The whole retry policy."),
    click.option("--timeout", type=duration, metavar="DURATION", help="For one attempt."),
    click.option("--concurrency-key", metavar="TEXT", help="Key of a concurrency limit."),
    click.option(
        "--concurrency-limit",
        type=click.IntRange(min=1),
        metavar="N",
        help="Running tasks with the key at most.",
    ),
    click.option("--tag", "tags", type=pair, multiple=True, metavar="NAME:VALUE", help="A tag."),
]


@click.command("submit")
@click.argument("task_type", metavar="[TYPE]", required=False, shell_complete=TASK_TYPES)
@click.argument("payload", metavar="[PAYLOAD]", type=json_document, required=False)
@with_flags([*ONE_TASK_FLAGS, *TEMPLATE_FLAGS])
@click.option(
    "--from",
    "source",
    type=click.File("rb"),
    metavar="FILE",
    help="Submit many: a JSON task on each line; - is standard input.",
)
@click.option(
    "--skip", type=click.IntRange(min=0), default=0, metavar="N", help="Skip the first N lines."
)
@over_api
def submit(
    session: ApiSession,
    task_type: str | None,
    payload: Raw | None,
    source: BinaryIO | None,
    skip: int,
    **options: Any,
) -> int:
    """Submit a task of TYPE. PAYLOAD is JSON, @FILE, or - for standard input.

    With --from, every line of the file is a task as in the API: {"type": ..., "payload": ...}.
    Lines that are refused are named at the end, and the others are stored.
    """
    if source is not None:
        if task_type is not None or task_of("", payload, **options) != {"type": ""}:
            raise click.UsageError("with --from, tasks are described in the file alone")
        return submit_lines(session, source, skip)
    if task_type is None:
        raise click.UsageError("give the TYPE of the task, or --from FILE")
    asked = task_of(task_type, payload, **options)
    key = options["idempotency_key"]
    task = session.ask("POST", "/v1/tasks", asked, idempotency_key=key)
    session.show(task, lambda found: print_card(found, LEADING))
    return 0


def refuse_url_of_webhook() -> None:
    """In programs `url` is that of a task's webhook; here it would be sent the API key."""
    url = click.get_current_context().params.get("url") or ""
    if urlsplit(url).path.strip("/"):
        raise click.UsageError(
            "--url is the address of duly; a task's webhook is --webhook URL. A duly below a path"
            " is named with DULY_URL"
        )


def task_of(task_type: str, payload: Raw | None, **options: Any) -> Json:
    """The request of the API, with only what was said."""
    headers, tags = dict(options["header"]), dict(options["tags"])
    if options["webhook"] is None and options["pool"] is None:
        refuse_url_of_webhook()
    if options["max_attempts"] is not None and options["retry"] is not None:
        raise click.UsageError("give --max-attempts or --retry")
    if headers and options["webhook"] is None:
        raise click.UsageError("--header goes with --webhook")
    target = given(pool=options["pool"], url=options["webhook"], headers=headers or None)
    retry = options["retry"]
    if options["max_attempts"] is not None:
        retry = {"max_attempts": options["max_attempts"]}
    return given(
        type=task_type,
        payload=payload,
        run_at=options["run_at"],
        delay_s=options["delay"],
        target=target or None,
        priority=options["priority"],
        retry=retry,
        timeout_s=options["timeout"],
        start_by=options["start_by"],
        jitter_s=options["jitter"],
        concurrency_key=options["concurrency_key"],
        concurrency_limit=options["concurrency_limit"],
        idempotency_key=options["idempotency_key"],
        callback=options["callback"],
        unique=options["unique"],
        debounce=options["debounce"],
        throttle=options["throttle"],
        tags=tags or None,
    )


def submit_lines(session: ApiSession, source: BinaryIO, skip: int) -> int:
    bulk = Bulk(session, skip)
    try:
        with progress("submit", count_lines(source, skip), is_shown=not session.as_json) as advance:
            for batch in batches(numbered_lines(source, skip)):
                bulk.store(batch)
                advance(len(batch))
    except (ApiError, Unreachable, KeyboardInterrupt):
        # A script gets one problem on its standard error, and nothing beside it.
        if not session.as_json:
            note(bulk.rest())
        raise
    session.show({"stored": bulk.stored, "refused": bulk.refused}, print_report)
    return 1 if bulk.refused else 0


class Bulk:
    """What became of the lines so far."""

    def __init__(self, session: ApiSession, done: int) -> None:
        self.session = session
        # Up to this line everything is dealt with.
        self.done = done
        self.is_asking = False
        self.stored = 0
        self.refused: list[Json] = []

    def store(self, batch: list[Line]) -> None:
        """All of the batch but what is refused: that is set aside, and the rest sent again."""
        rest = [line for line in batch if self.is_sound(line)]
        while rest:
            try:
                self.ask(rest)
            except (Invalid, Conflict) as error:
                guilty = self.set_aside(rest, error.errors)
                if not guilty:
                    raise
                rest = [line for place, line in enumerate(rest) if place not in guilty]
            else:
                self.stored += len(rest)
                break
        self.done = batch[-1][0]

    def ask(self, rest: list[Line]) -> None:
        self.is_asking = True
        try:
            self.session.ask("POST", "/v1/tasks/batch", {"tasks": [Raw(text) for _, text in rest]})
        except (Invalid, Conflict, RateLimited):
            self.is_asking = False
            raise
        self.is_asking = False

    def rest(self) -> str:
        """How to go on after it broke off."""
        text = f"{self.stored:,} tasks are stored; go on with --skip {self.done}"
        if self.is_asking:
            text += " (lines of the last batch may be stored already: an idempotency_key tells)"
        return text

    def is_sound(self, line: Line) -> bool:
        number, text = line
        try:
            problem = None if isinstance(msgspec.json.decode(text), dict) else "is not an object"
        except (msgspec.DecodeError, RecursionError) as error:
            problem = f"is not JSON: {error}"
        if problem is not None:
            self.refused.append({"line": number, "pointer": "", "detail": problem})
        return problem is None

    def set_aside(self, batch: list[Line], errors: list[dict[str, str]]) -> set[int]:
        """The places in the batch that the server pointed at."""
        guilty: set[int] = set()
        for error in errors:
            place, _, rest = error["pointer"].removeprefix("/tasks/").partition("/")
            if place.isdigit() and int(place) < len(batch):
                guilty.add(int(place))
                pointer = f"/{rest}" if rest else ""
                refused = {"line": batch[int(place)][0], "pointer": pointer}
                self.refused.append({**refused, "detail": error["detail"]})
        return guilty


def count_lines(source: BinaryIO, skip: int) -> int | None:
    """None for a pipe, which can be read only once."""
    if not source.seekable():
        return None
    count = sum(1 for _ in numbered_lines(source, skip))
    source.seek(0)
    return count


def numbered_lines(source: BinaryIO, skip: int) -> Iterator[Line]:
    """Lines count from 1; empty ones are left out."""
    number = 0
    while text := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(text) > LINE_BYTES_MAX:
            raise click.UsageError(f"line {number} has more than {LINE_BYTES_MAX} bytes")
        if number > skip and text.strip():
            yield number, text.strip()


def batches(lines: Iterator[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size = 0
    for line in lines:
        if batch and (len(batch) >= BATCH_MAX or size + len(line[1]) > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(line)
        size += len(line[1])
    if batch:
        yield batch


def print_report(report: Json) -> None:
    click.echo(f"{counted(report['stored'], 'task')} stored")
    for refused in report["refused"][:REFUSED_SHOWN_MAX]:
        where = f" {refused['pointer']}" if refused["pointer"] else ""
        note(f"line {refused['line']}:{where} {refused['detail']}")
    beyond = len(report["refused"]) - REFUSED_SHOWN_MAX
    if beyond > 0:
        note(f"and {beyond:,} more; --json names them all")
