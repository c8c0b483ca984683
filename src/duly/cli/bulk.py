"""Bulk operations in batches that the server bounds: dry run, confirmation, then batch after batch
until nothing is left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from duly.cli.api_session import ApiSession, Json
from duly.cli.output import confirm, progress


@dataclass(frozen=True)
class BulkOperation:
    """`verb` and `things` are for people: "purge" and "dead letters". A batch that changed none of
    `moved` is the last: what still matches would only match again."""

    path: str
    verb: str
    things: str
    moved: Sequence[str]
    counted: Sequence[str]


def run_in_batches(
    session: ApiSession, work: BulkOperation, body: Json, *, dry_run: bool, yes: bool
) -> Json:
    """The totals of all batches; `has_more` if it ended before everything was done."""
    looked: Json = session.ask("POST", work.path, {**body, "dry_run": True})
    if dry_run or not looked["matched"]:
        return {**looked, "dry_run": dry_run}
    many = number_of(looked)
    confirm(f"{work.verb} {many} {work.things}?", yes=yes, as_json=session.as_json)
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


def number_of(looked: Json) -> str:
    return f"{'more than ' if looked['has_more'] else ''}{looked['matched']:,}"
