"""Which guard holds which invariant: the scenarios, and the guards without which they must fail."""

from duly.store import (
    control,
    dead_letters,
    idempotency,
    lease,
    purge,
    reap,
    settle,
    submit,
)
from tests.guards import scenarios as acted
from tests.guards.mutants import Mutant, with_edits, without
from tests.guards.scenarios import Scenario

FENCE, HOLDER = "AND timers.fence = done.fence", "AND timers.holder = done.holder"
# A parameter that nobody mentions has no type, so these leave it standing.
ANY_LEASE = (
    "AND (NOT $10::boolean OR timers.lease_until <= duly.now())",
    "AND $10::boolean IS NOT NULL",
)
ANY_HOLDER = ("AND timers.holder = $4", "AND $4::uuid IS NOT NULL")
UNREQUESTED = "AND NOT timers.cancel_requested"
SAME_HOLDER = "attempts.holder = asked.holder\n                AND"
FENCE_RISES = "fence = timers.fence + 1,"
UNRECORDED = ("FROM ended\n)", "FROM ended WHERE false\n)")

PASSED_OVER = (
    "    RETURNING shard, id, tenant, pool,",
    "        ON CONFLICT DO NOTHING RETURNING shard, id, tenant, pool,",
)
UNGATED_TIMERS = (
    "FROM stored) AS due\n)",
    """FROM (SELECT asked.*, duly.now() AS created_at,
                   coalesce(at, duly.now() + make_interval(secs => delay_s)) AS run_at
              FROM unnest($1::smallint[], $2::uuid[], $3::integer[], $4::smallint[],
                          $5::smallint[], $6::integer[], $7::timestamptz[],
                          $8::double precision[], $9::timestamptz[], $10::text[], $11::text[],
                          $12::text[], $13::text[], $14::text[], $15::text[])
                   AS asked(shard, id, tenant, pool, priority, timeout_ms, at, delay_s, start_by,
                            type, payload, policy, url, execution_key, tags)) AS ungated) AS due
        ON CONFLICT DO NOTHING
)""",
)
# Read under the statement's snapshot and not again after a wait for the row.
GUARDS_IN_A_JOIN = (
    (
        "WHERE timers.shard = ANY (ARRAY[ticket.shard])",
        """JOIN duly.timers AS seen ON seen.shard = ticket.shard AND seen.id = ANY (ticket.ids)
     WHERE timers.shard = seen.shard AND timers.id = seen.id""",
    ),
    ("AND timers.fence = ticket.fence", "AND seen.fence = ticket.fence"),
    ("AND timers.holder IS NULL", "AND seen.holder IS NULL"),
    ("AND timers.due_at <= duly.now()", "AND seen.due_at <= duly.now()"),
)
CANCEL_FORGOTTEN = ("confirmed = false\n", "confirmed = false, cancel_requested = false\n")

# Invariant, scenario, and the guards without which the scenario must fail.
TEETH: list[tuple[str, Scenario, list[Mutant]]] = [
    (
        "I1",
        acted.ends_are_recorded,
        [
            with_edits("that records nothing", settle, "settle_completed", UNRECORDED),
            with_edits(
                "that records nothing",
                settle,
                "settle_final",
                (
                    "error, run_at\n      FROM ended\n)",
                    "error, run_at\n      FROM ended WHERE false\n)",
                ),
            ),
            with_edits(
                "that records nothing",
                control,
                "cancel_tasks",
                ("'CANCELLED', run_at FROM ended", "'CANCELLED', run_at FROM ended WHERE false"),
            ),
            with_edits(
                "that records nothing",
                reap,
                "expire_unstarted",
                ("'expired', run_at FROM ended", "'expired', run_at FROM ended WHERE false"),
            ),
        ],
    ),
    (
        "I1",
        acted.a_live_task_keeps_its_payload,
        [
            with_edits(
                "of any task",
                purge,
                "choose_ended",
                ("timers.shard = asked.shard AND timers.id = asked.id", "false"),
            )
        ],
    ),
    (
        "I1",
        acted.a_letter_is_replayed_once,
        [without(dead_letters, "replay_dead_letters", "AND dead_letters.replayed_as IS NULL")],
    ),
    (
        "I2",
        acted.an_old_ticket_is_void,
        [
            without(lease, "lease_tasks", "AND timers.fence = ticket.fence"),
            without(control, "move_tasks", FENCE_RISES),
        ],
    ),
    (
        "I2",
        acted.a_held_task_is_not_leased,
        [without(lease, "lease_tasks", "AND timers.holder IS NULL")],
    ),
    (
        "I2",
        acted.fences_rise,
        [
            without(lease, "lease_tasks", FENCE_RISES),
            without(settle, "settle_again", FENCE_RISES),
            without(control, "move_tasks", FENCE_RISES),
            with_edits(
                "with the fence as it was",
                control,
                "cancel_tasks",
                ("timers.fence + 1 AS fence", "timers.fence AS fence"),
            ),
        ],
    ),
    (
        "I2",
        acted.two_leasers_one_lease,
        [
            with_edits("with its guards in a join", lease, "lease_tasks", *GUARDS_IN_A_JOIN),
            without(
                lease,
                "lease_tasks",
                "AND timers.fence = ticket.fence",
                "AND timers.holder IS NULL",
                "AND timers.due_at <= duly.now()",
            ),
        ],
    ),
    (
        "I3",
        acted.a_stale_fence_changes_nothing,
        [
            without(settle, "settle_completed", FENCE),
            without(settle, "settle_final", FENCE),
            without(settle, "settle_again", FENCE),
            without(lease, "extend_leases", "AND timers.fence = beat.fence"),
        ],
    ),
    (
        "I3",
        acted.a_foreign_holder_changes_nothing,
        [
            without(settle, "settle_completed", HOLDER),
            without(settle, "settle_final", HOLDER),
            without(settle, "settle_again", HOLDER),
            with_edits("of any holder", lease, "extend_leases", ANY_HOLDER),
        ],
    ),
    (
        "I3",
        acted.a_stranger_repeats_nothing,
        [
            without(
                settle,
                "classify_settlements",
                "attempts.holder = asked.holder\n                AND",
            )
        ],
    ),
    (
        "I3",
        acted.a_heartbeat_ends_with_the_time_limit,
        [
            without(
                lease,
                "extend_leases",
                "AND duly.now() < timers.started_at + timers.timeout_ms * interval '1 millisecond'",
            )
        ],
    ),
    (
        "I3",
        acted.a_reaper_spares_the_living,
        [with_edits("of any lease", settle, "settle_again", ANY_LEASE)],
    ),
    (
        "I3",
        acted.a_reaper_spares_the_living_that_is_to_be_cancelled,
        [with_edits("of any lease", settle, "settle_final", ANY_LEASE)],
    ),
    (
        "I3",
        acted.a_look_at_a_lease_leaves_its_successor_alone,
        [
            without(
                reap,
                "rearm_leases",
                "AND timers.fence = lease.fence",
                "AND timers.holder = lease.holder",
            )
        ],
    ),
    (
        "I3",
        acted.only_the_unstarted_expire,
        [
            without(reap, "expire_unstarted", "AND timers.fence = late.fence"),
            without(reap, "expire_unstarted", "AND timers.started_at IS NULL"),
            with_edits(
                "of what runs",
                reap,
                "expire_unstarted",
                ("AND timers.holder IS NULL", ""),
                ("AND timers.started_at IS NULL", ""),
            ),
            without(reap, "expire_unstarted", "AND timers.start_by <= duly.now()"),
        ],
    ),
    (
        "I4",
        acted.an_old_batch_revives_nothing,
        [
            with_edits(
                "that passes over what exists and arms it",
                submit,
                "submit_tasks",
                PASSED_OVER,
                UNGATED_TIMERS,
            ),
        ],
    ),
    (
        "I5",
        acted.ends_are_recorded,
        [
            with_edits("that records nothing", settle, "settle_completed", UNRECORDED),
            with_edits(
                "that records nothing",
                settle,
                "settle_again",
                ("FROM again\n)", "FROM again WHERE false\n)"),
            ),
        ],
    ),
    (
        "I5",
        acted.only_charged_attempts_count,
        [
            with_edits(
                "that charges all", settle, "settle_again", ("attempt + done.charge", "attempt + 1")
            ),
            with_edits(
                "that charges none", settle, "settle_again", ("attempt + done.charge", "attempt")
            ),
            with_edits(
                "that charges all",
                settle,
                "settle_final",
                ("done.outcome IN ('released', 'snoozed')", "false"),
            ),
        ],
    ),
    (
        "I8",
        acted.a_key_stands_for_one_request,
        [
            without(submit, "submit_keyed", "WHERE held.expires_at <= duly.now()"),
            with_edits(
                "that never frees a key",
                submit,
                "submit_keyed",
                ("WHERE held.expires_at <= duly.now()", "WHERE false"),
            ),
            without(
                submit,
                "submit_keyed",
                """ON CONFLICT (shard, tenant, key) DO UPDATE
       SET request_hash = excluded.request_hash,
           task_id = excluded.task_id,
           expires_at = excluded.expires_at
     WHERE held.expires_at <= duly.now()""",
            ),
            with_edits(
                "that keeps the old request",
                submit,
                "submit_keyed",
                ("request_hash = excluded.request_hash,\n           ", ""),
                ("task_id = excluded.task_id,\n           ", ""),
            ),
        ],
    ),
    (
        "I8",
        acted.the_broom_spares_a_key_that_was_taken_over,
        [
            with_edits(
                "that looks once",
                idempotency,
                "delete_expired_keys",
                ("LIMIT $1)\n   AND expires_at <= duly.now()", "LIMIT $1)"),
            )
        ],
    ),
    (
        "I12",
        acted.nothing_is_leased_early,
        [
            without(lease, "lease_tasks", "AND timers.due_at <= duly.now()"),
            with_edits(
                "that arms at once",
                submit,
                "submit_tasks",
                ("greatest(run_at, created_at)", "created_at"),
            ),
            without(submit, "submit_tasks", "AND run_at <= created_at"),
            with_edits(
                "that retries at once",
                settle,
                "settle_again",
                ("duly.now() + make_interval(secs => done.delay_s)", "duly.now()"),
            ),
        ],
    ),
    (
        "I13",
        acted.after_a_cancel_there_is_no_retry,
        [
            without(settle, "settle_again", UNREQUESTED),
            with_edits(
                "that forgets the cancel",
                settle,
                "settle_again",
                (UNREQUESTED, ""),
                CANCEL_FORGOTTEN,
            ),
            with_edits(
                "that ends as decided",
                settle,
                "settle_final",
                (
                    "CASE WHEN timers.cancel_requested THEN 'CANCELLED' ELSE done.state END",
                    "done.state",
                ),
            ),
        ],
    ),
    (
        "I13",
        acted.a_retry_and_a_cancel_agree,
        [
            with_edits(
                "that forgets the cancel",
                settle,
                "settle_again",
                (UNREQUESTED, ""),
                CANCEL_FORGOTTEN,
            )
        ],
    ),
    (
        "I13",
        acted.a_lease_and_a_cancel_agree,
        [
            without(control, "cancel_tasks", "AND timers.holder IS NULL"),
            without(control, "cancel_tasks", "AND timers.holder IS NOT NULL"),
        ],
    ),
]
