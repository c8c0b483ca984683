"""Which guard holds which invariant: the scenarios, and the guards without which they must fail."""

from duly.store import (
    control,
    dead_letters,
    finish,
    idempotency,
    insert,
    lease,
    purge,
    reap,
    retry,
    settle,
    subworkflows,
    workflow_appends,
    workflow_compensations,
    workflow_control,
    workflow_handovers,
    workflow_maps,
    workflow_nodes,
    workflow_pauses,
    workflow_signals,
)
from tests.guards import scenarios as acted
from tests.guards.scenarios import Scenario
from tests.teeth.planted import Bug, with_edits, without

FENCE, HOLDER = "AND timers.fence = done.fence", "AND timers.holder = done.holder"
# A parameter that nobody mentions has no type, so these leave it standing.
ANY_LEASE = (
    "AND (NOT $10::boolean OR timers.lease_until <= duly.now())",
    "AND $10::boolean IS NOT NULL",
)
ANY_HOLDER = ("AND timers.holder = $4", "AND $4::uuid IS NOT NULL")
WAIT_ROLE = "node.spec::jsonb #>> '{wait,role}'"
UNDER_LOCK = "AND (SELECT is_locked FROM locked)"
LATER = "duly.now() + make_interval(secs => done.delay_s)"
NOT_HELD = (
    f"(due_at, held_due_at) = (SELECT * FROM duly.due_or_held(timers.id, {LATER}))",
    f"due_at = {LATER}",
)
UNREQUESTED = "AND NOT timers.cancel_requested"
SAME_HOLDER = "attempts.holder = asked.holder\n                AND"
FENCE_RISES = "fence = timers.fence + 1,"
UNRECORDED = (
    "result, run_at\n      FROM ended\n)",
    "result, run_at\n      FROM ended WHERE false\n)",
)

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
TEETH: list[tuple[str, Scenario, list[Bug]]] = [
    (
        "I1",
        acted.ends_are_recorded,
        [
            with_edits("that records nothing", finish, "finish_completed", UNRECORDED),
            with_edits("that records nothing", finish, "finish_terminal", UNRECORDED),
            with_edits("that records nothing", finish, "finish_cancelled", UNRECORDED),
            with_edits("that records nothing", finish, "finish_unstarted", UNRECORDED),
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
            without(control, "reschedule_tasks", FENCE_RISES),
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
            without(retry, "retry_tasks", FENCE_RISES),
            without(control, "reschedule_tasks", FENCE_RISES),
            with_edits(
                "with the fence as it was",
                finish,
                "finish_cancelled",
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
            without(finish, "finish_completed", FENCE),
            without(finish, "finish_terminal", FENCE),
            without(retry, "retry_tasks", FENCE),
            without(lease, "extend_leases", "AND timers.fence = beat.fence"),
        ],
    ),
    (
        "I3",
        acted.a_foreign_holder_changes_nothing,
        [
            without(finish, "finish_completed", HOLDER),
            without(finish, "finish_terminal", HOLDER),
            without(retry, "retry_tasks", HOLDER),
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
        [with_edits("of any lease", retry, "retry_tasks", ANY_LEASE)],
    ),
    (
        "I3",
        acted.a_reaper_spares_the_living_that_is_to_be_cancelled,
        [with_edits("of any lease", finish, "finish_terminal", ANY_LEASE)],
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
            without(finish, "finish_unstarted", "AND timers.fence = late.fence"),
            without(finish, "finish_unstarted", "AND timers.started_at IS NULL"),
            with_edits(
                "of what runs",
                finish,
                "finish_unstarted",
                ("AND timers.holder IS NULL", ""),
                ("AND timers.started_at IS NULL", ""),
            ),
            without(finish, "finish_unstarted", "AND timers.start_by <= duly.now()"),
        ],
    ),
    (
        "I4",
        acted.an_old_batch_revives_nothing,
        [
            with_edits(
                "that passes over what exists and arms it",
                insert,
                "insert_tasks",
                PASSED_OVER,
                UNGATED_TIMERS,
            ),
        ],
    ),
    (
        "I5",
        acted.ends_are_recorded,
        [
            with_edits("that records nothing", finish, "finish_completed", UNRECORDED),
            with_edits("that records nothing", retry, "retry_tasks", UNRECORDED),
        ],
    ),
    (
        "I5",
        acted.only_charged_attempts_count,
        [
            with_edits(
                "that charges all", retry, "retry_tasks", ("attempt + done.charge", "attempt + 1")
            ),
            with_edits(
                "that charges none", retry, "retry_tasks", ("attempt + done.charge", "attempt")
            ),
            with_edits(
                "that charges all",
                finish,
                "finish_terminal",
                ("done.outcome IN ('released', 'snoozed')", "false"),
            ),
        ],
    ),
    (
        "I8",
        acted.a_key_stands_for_one_request,
        [
            without(insert, "insert_keyed", "WHERE held.expires_at <= duly.now()"),
            with_edits(
                "that never frees a key",
                insert,
                "insert_keyed",
                ("WHERE held.expires_at <= duly.now()", "WHERE false"),
            ),
            without(
                insert,
                "insert_keyed",
                """ON CONFLICT (shard, tenant, key) DO UPDATE
       SET request_hash = excluded.request_hash,
           task_id = excluded.task_id,
           expires_at = excluded.expires_at
     WHERE held.expires_at <= duly.now()""",
            ),
            with_edits(
                "that keeps the old request",
                insert,
                "insert_keyed",
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
                insert,
                "insert_tasks",
                ("greatest(run_at, created_at)", "created_at"),
            ),
            without(insert, "insert_tasks", "AND run_at <= created_at"),
            with_edits(
                "that retries at once",
                retry,
                "retry_tasks",
                ("duly.now() + make_interval(secs => done.delay_s)", "duly.now()"),
            ),
        ],
    ),
    (
        "I13",
        acted.after_a_cancel_there_is_no_retry,
        [
            without(retry, "retry_tasks", UNREQUESTED),
            with_edits(
                "that forgets the cancel",
                retry,
                "retry_tasks",
                (UNREQUESTED, ""),
                CANCEL_FORGOTTEN,
            ),
            with_edits(
                "that ends as decided",
                finish,
                "finish_terminal",
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
                retry,
                "retry_tasks",
                (UNREQUESTED, ""),
                CANCEL_FORGOTTEN,
            )
        ],
    ),
    (
        "I13",
        acted.a_lease_and_a_cancel_agree,
        [
            without(finish, "finish_cancelled", "AND timers.holder IS NULL"),
            without(finish, "finish_cancelled", "AND timers.holder IS NOT NULL"),
        ],
    ),
    (
        "I7",
        acted.a_node_ends_under_the_lock_of_its_workflow,
        [
            without(finish, "finish_completed_nodes", UNDER_LOCK),
            without(finish, "finish_terminal_nodes", UNDER_LOCK),
            with_edits(
                "without the lock",
                finish,
                "finish_cancelled_nodes",
                ("duly.lock_workflows($3) AS is_locked", "true AS is_locked"),
            ),
        ],
    ),
    (
        "I7",
        acted.nothing_starts_in_a_pause,
        [
            without(retry, "retry_nodes", UNDER_LOCK),
            with_edits("that is not held", retry, "retry_nodes", NOT_HELD),
            without(workflow_pauses, "hold_timers", "AND timers.holder IS NULL"),
        ],
    ),
    (
        "I7",
        acted.what_a_pause_holds_is_due_afterwards,
        [
            with_edits(
                "that forgets the instant",
                workflow_pauses,
                "release_timers",
                ("SET due_at = timers.held_due_at,", "SET due_at = NULL,"),
            )
        ],
    ),
    (
        "I3",
        acted.a_late_worker_adds_no_nodes,
        [
            with_edits(
                "by any fence",
                workflow_appends,
                "read_lease",
                ("AND timers.fence = $3", "AND $3::integer IS NOT NULL"),
                ("AND timers.holder = $4", "AND $4::uuid IS NOT NULL"),
            )
        ],
    ),
    (
        "I7",
        acted.added_nodes_join_as_their_parents_stand,
        [
            with_edits(
                "for all children again",
                workflow_appends,
                "count_ended",
                ("$1::uuid[], $2::text[], $3)", "$1::uuid[], $2::text[], $3 * 0)"),
            ),
            with_edits(
                "that tells no parent",
                workflow_appends,
                "append_nodes",
                ("workflow_nodes.children || added.children::integer[]", "workflow_nodes.children"),
            ),
        ],
    ),
    (
        "I3",
        acted.a_late_parent_hands_over_no_items,
        [
            with_edits(
                "by any fence",
                workflow_handovers,
                "find_paged_map",
                ("AND source.fence = $4", "AND $4::integer IS NOT NULL"),
            ),
            without(workflow_handovers, "find_paged_map", "AND source.holder IS NOT NULL"),
        ],
    ),
    (
        "I7",
        acted.a_map_begins_once_its_parents_let_it,
        [
            without(workflow_maps, "open_map", "AND timers.started_at IS NULL"),
            with_edits(
                "before its parents",
                workflow_maps,
                "open_map",
                ("AND timers.parents_pending = 1)", "OR timers.parents_pending > 0)"),
            ),
        ],
    ),
    (
        "I7",
        acted.a_map_is_closed_and_fails_once,
        [
            without(workflow_maps, "close_map", "AND timers.items_mark IS NOT NULL"),
            without(workflow_maps, "note_failure", "AND workflow_maps.reason IS NULL"),
        ],
    ),
    (
        "I7",
        acted.a_signal_meets_the_wait_that_begins,
        [without(workflow_nodes, "lock", "FOR NO KEY UPDATE OF workflows")],
    ),
    (
        "I7",
        acted.a_signal_is_for_one_node_that_wants_its_sender,
        [
            with_edits(
                "that any node may take",
                workflow_signals,
                "take_signal",
                ("AND access = ANY ($4::text[])", "AND $4::text[] IS NOT NULL"),
            ),
            without(workflow_signals, "take_signal", "AND consumed_by IS NULL"),
            with_edits(
                "for any node",
                workflow_signals,
                "take_waiting",
                (
                    "AND node.spec::jsonb #>> '{wait,role}' = ANY ($4::text[])",
                    "AND $4::text[] IS NOT NULL",
                ),
            ),
        ],
    ),
    (
        "I7",
        acted.what_completed_is_undone_once_and_the_last_first,
        [
            with_edits(
                "all at once",
                workflow_compensations,
                "make_compensations",
                ("CASE WHEN $5 AND duly.node_number(id) > $3 THEN 1 END", "NULL::integer"),
            ),
            with_edits(
                "the first that completed first",
                workflow_compensations,
                "list_ended",
                (
                    "ORDER BY last.ended_at DESC, node.number DESC",
                    "ORDER BY last.ended_at",
                ),
            ),
            with_edits(
                "and what failed as well",
                workflow_compensations,
                "list_ended",
                ("last.state = 'COMPLETED'", "last.state IS NOT NULL"),
            ),
            with_edits(
                "again from the beginning",
                workflow_compensations,
                "list_ended",
                ("$3::timestamptz IS NULL OR", "$3::timestamptz IS NOT NULL OR $3 IS NULL OR"),
            ),
        ],
    ),
    (
        "I7",
        acted.a_cancel_stops_what_undoes,
        [
            with_edits(
                "for the first reason",
                workflow_control,
                "stop",
                ("workflows.on_failure = 'compensate'", "workflows.on_failure = 'none'"),
            )
        ],
    ),
    (
        "I7",
        acted.a_node_ends_with_the_workflow_inside,
        [
            with_edits(
                "that leaves what is inside alone",
                finish,
                "finish_cancelled_nodes",
                ("AND timers.id <> ALL (ARRAY(SELECT node FROM inside))", "AND true"),
            ),
            with_edits(
                "that has not ended",
                subworkflows,
                "read_inside",
                ("AND workflows.ended_at IS NOT NULL", "AND true"),
            ),
        ],
    ),
]
