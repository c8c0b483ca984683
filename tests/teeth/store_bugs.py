"""Deliberate bugs of the store, to see whether seeds notice: a statement or a method made wrong."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from duly.domain.errors import DatabaseUnavailable
from duly.domain.retry import Failure, GiveUp, Retry, RetryPolicy, decide
from duly.domain.task import Submission
from duly.store import control, dead_letters, finish, insert, lease, purge, reap, retry, settle
from duly.store.database import Session
from duly.store.insert import InsertRow
from duly.store.submit import Replayed, SubmitAnswer, Submitter
from tests.teeth.planted import Bug, Slip

SOUND_SUBMIT = Submitter.submit
SOUND_CLAIMED = Submitter.store_claimed
SOUND_KNOWN = Submitter.answer_known


async def submit_again(submitter: Submitter, tasks: Sequence[Submission]) -> list[SubmitAnswer]:
    """A commit of unknown outcome is repeated with new ids."""
    try:
        return await SOUND_SUBMIT(submitter, tasks)
    except DatabaseUnavailable:
        return await SOUND_SUBMIT(submitter, tasks)


async def answer_early(
    submitter: Submitter, session: Session, entries: list[InsertRow]
) -> dict[int, SubmitAnswer]:
    """Whatever becomes of the commit."""
    if session is not submitter.database:
        return await SOUND_CLAIMED(submitter, session, entries)
    answers: dict[int, SubmitAnswer] = {}
    try:
        async with submitter.database.transaction() as transaction:
            answers = await SOUND_CLAIMED(submitter, transaction, entries)
    except DatabaseUnavailable:
        if not answers:
            raise
    return answers


async def take_for_the_same(
    submitter: Submitter, session: Any, entries: list[InsertRow], hashes: dict[int, bytes]
) -> dict[int, SubmitAnswer]:
    """Another request under a known key is not told so."""
    answers = await SOUND_KNOWN(submitter, session, entries, hashes)
    return {ordinal: Replayed(answer.id) for ordinal, answer in answers.items()}


def decide_late(
    policy: RetryPolicy, attempt: int, losses: int, failure: Failure, random: Random
) -> Retry | GiveUp:
    """`>` where `>=` belongs."""
    more = replace(policy, max_attempts=policy.max_attempts + 1)
    return decide(more, attempt, losses, failure, random)


FENCE_UP = "fence = timers.fence + 1,"
FENCE_KEPT = "fence = timers.fence,"
HOLDER_OF_LEASE = "AND timers.holder = done.holder"
FENCE_OF_LEASE = "AND timers.fence = done.fence"
NOT_EXPIRED = "AND (NOT $10::boolean OR timers.lease_until <= duly.now())"
LOST_ANYWAY = "AND ($10::boolean OR true)"

BUGS: list[Bug | Slip] = [
    Bug(
        "a ticket needs no fence",
        lease.SQL,
        "lease_tasks",
        "AND timers.fence = ticket.fence",
        "AND timers.fence >= ticket.fence",
    ),
    Bug(
        "a held task is leased again",
        lease.SQL,
        "lease_tasks",
        "AND timers.holder IS NULL",
        "AND timers.fence + 1 > ticket.fence",
    ),
    Bug(
        "a lease before its time",
        lease.SQL,
        "lease_tasks",
        "AND timers.due_at <= duly.now()",
        "AND timers.due_at <= duly.now() + interval '1 second'",
    ),
    Bug("a lease keeps the fence", lease.SQL, "lease_tasks", FENCE_UP, FENCE_KEPT),
    Bug(
        "a heartbeat extends a foreign lease",
        lease.SQL,
        "extend_leases",
        "AND timers.holder = $4",
        "AND timers.holder IS NOT NULL AND $4::uuid IS NOT NULL",
    ),
    Bug("an end keeps the fence", retry.SQL, "retry_tasks", FENCE_UP, FENCE_KEPT),
    Bug(
        "a retry after a requested cancel",
        retry.SQL,
        "retry_tasks",
        "AND NOT timers.cancel_requested",
        "",
        ("confirmed = false", "confirmed = false, cancel_requested = false"),
    ),
    Bug("a retry is not charged", retry.SQL, "retry_tasks", "timers.attempt + done.charge", "0"),
    Bug("anybody completes", finish.SQL, "finish_completed", HOLDER_OF_LEASE, ""),
    Bug("an old lease completes", finish.SQL, "finish_completed", FENCE_OF_LEASE, ""),
    Bug("anybody fails a task", finish.SQL, "finish_terminal", HOLDER_OF_LEASE, ""),
    Bug("reaped without looking again", retry.SQL, "retry_tasks", NOT_EXPIRED, LOST_ANYWAY),
    Bug(
        "failed although cancelled",
        finish.SQL,
        "finish_terminal",
        "CASE WHEN timers.cancel_requested THEN 'CANCELLED' ELSE done.state END",
        "done.state",
        ("CASE WHEN NOT timers.cancel_requested THEN done.reason END", "done.reason"),
    ),
    Bug(
        "a lease is never looked at", reap.SQL, "find_expired", "AND timers.queue = 0", "AND false"
    ),
    Bug(
        "a lease in place is never looked at",
        reap.SQL,
        "find_expired",
        "AND lease_expiry_batches.expires_at <= duly.now()",
        "AND false",
    ),
    Bug(
        "a lease in place has no expiry batch",
        lease.SQL,
        "lease_tasks",
        "WHERE queue <> 0",
        "WHERE false",
    ),
    Bug(
        "cancel takes a running task away",
        finish.SQL,
        "finish_cancelled",
        "AND timers.holder IS NULL",
        "",
    ),
    Bug("a move keeps the fence", control.SQL, "reschedule_tasks", FENCE_UP, FENCE_KEPT),
    Bug(
        "a running task is moved",
        control.SQL,
        "reschedule_tasks",
        "AND timers.holder IS NULL",
        "",
    ),
    Bug(
        "a key is taken over", insert.SQL, "insert_keyed", "WHERE held.expires_at <= duly.now()", ""
    ),
    Bug(
        "a letter is replayed twice",
        dead_letters.SQL,
        "replay_dead_letters",
        "AND dead_letters.replayed_as IS NULL",
        "",
    ),
    Bug(
        "a live task is purged",
        purge.SQL,
        "choose_ended",
        "AND NOT EXISTS (SELECT FROM duly.timers",
        "AND true OR EXISTS (SELECT FROM duly.timers",
    ),
    Bug(
        "a lease is asked back by anybody",
        lease.SQL,
        "read_held",
        "WHERE timers.holder = $4",
        "WHERE timers.holder IS NOT NULL AND $4::uuid IS NOT NULL",
    ),
    Bug(
        "an end leaves no record",
        finish.SQL,
        "finish_completed",
        "FROM ended\n)",
        "FROM ended WHERE false\n)",
    ),
    Bug(
        "a cancel leaves no record",
        finish.SQL,
        "finish_cancelled",
        "FROM ended\n)",
        "FROM ended WHERE false\n)",
    ),
    Bug(
        "a failure leaves no dead letter",
        finish.SQL,
        "finish_terminal",
        "WHERE ended.state = 'FAILED'",
        "WHERE ended.state = 'LOST'",
    ),
    Bug(
        "a cancel keeps the fence",
        finish.SQL,
        "finish_cancelled",
        "timers.fence + 1 AS fence",
        "timers.fence AS fence",
    ),
    Bug(
        "a stale settlement is called a replay",
        settle.SQL,
        "classify_settlements",
        "coalesce(attempts.holder = asked.holder",
        "coalesce(attempts.holder = asked.holder OR true OR attempts.holder = asked.holder",
    ),
    Slip("a submit is repeated with new ids", Submitter, "submit", submit_again),
    Slip("a submit is answered before its commit", Submitter, "store_claimed", answer_early),
    Slip("a key with another request is a replay", Submitter, "answer_known", take_for_the_same),
    Slip("one attempt too many", settle, "decide", decide_late),
]
