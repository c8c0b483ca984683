"""Bulk operations in batches that the server bounds: dry run, confirmation, then batch after batch
until nothing is left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from duly.cli.api_session import ApiSession, Json
from duly.cli.output import confirm, counted, progress


@dataclass(frozen=True)
class BulkOperation:
    """`verb` and `thing` are for people: "purge" and "dead letter". A batch that changed none of
    `moved` is the last: what still matches would only match again."""

    path: str
    verb: str
    thing: str
    moved: Sequence[str]
    counted: Sequence[str]


def run_in_batches(
    session: ApiSession, work: BulkOperation, body: Json, *, dry_run: bool, yes: bool
) -> Json:
    """The totals of all batches; `has_more` if it ended before everything was done."""
    looked: Json = session.ask("POST", work.path, {**body, "dry_run": True})
    if dry_run or not looked["matched"]:
        return {**looked, "dry_run": dry_run}
    many = number_of(looked, work.thing)
    confirm(f"{work.verb} {many}?", yes=yes, as_json=session.as_json)
    total = None if looked["has_more"] else looked["matched"]
    sums: Counter[str] = Counter()
    with progress(work.verb, total, is_shown=not session.as_json) as advance:
        while True:
            batch: Json = session.ask("POST", work.path, {**body, "dry_run": False})
            for name in work.counted:
                sums[name] += batch[name]
            advance(batch["matched"])
            if batch.get("next_cursor") is not None:
                # Nothing that matches was found up to there.
                body = {**body, "cursor": batch["next_cursor"]}
                continue
            if not batch["has_more"] or not any(batch[name] for name in work.moved):
                break
            if batch.get("last_at") is not None:
                # Replays are spread over time: the next batch starts where this one ends.
                body = {**body, "start_at": batch["last_at"]}
    totals = {name: sums[name] for name in work.counted}
    return {**batch, **totals}


def number_of(looked: Json, noun: str) -> str:
    return f"{'more than ' if looked['has_more'] else ''}{counted(looked['matched'], noun)}"


def matching(looked: Json, noun: str) -> str:
    is_one = looked["matched"] == 1 and not looked["has_more"]
    return f"{number_of(looked, noun)} match{'es' if is_one else ''}"
