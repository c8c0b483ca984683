-- fragment: taken
-- The head of each queue leaves the table; what another taker has in hand is skipped.
WITH head AS MATERIALIZED (
    SELECT ticket.spot
      FROM unnest(:tenants::integer[], :pools::smallint[], :bands::smallint[], :sequences::bigint[])
           AS lane(tenant, pool, band, after_sequence)
     CROSS JOIN LATERAL (
           SELECT ready_tickets.ctid AS spot
             FROM duly.ready_tickets
            WHERE ready_tickets.tenant = lane.tenant
              AND ready_tickets.pool = lane.pool
              AND ready_tickets.band = lane.band
              AND ready_tickets.sequence > lane.after_sequence
              AND coalesce(ready_tickets.task_tenant, lane.tenant) <> ALL (:left_out::integer[])
            ORDER BY ready_tickets.sequence
            LIMIT :most
              FOR UPDATE SKIP LOCKED) AS ticket
     LIMIT :most
), taken AS (
    DELETE FROM duly.ready_tickets
     USING head
     WHERE ready_tickets.ctid = head.spot
 RETURNING coalesce(ready_tickets.task_tenant, ready_tickets.tenant) AS tenant,
           ready_tickets.pool, ready_tickets.band, ready_tickets.sequence, ready_tickets.shard,
           ready_tickets.id, ready_tickets.fence, ready_tickets.deadline,
           ready_tickets.fires_at

-- fragment: told
-- The tickets that left, as arrays of one row.
       array_agg(taken.tenant) AS tenants, array_agg(taken.pool) AS pools,
       array_agg(taken.band) AS bands, array_agg(taken.sequence) AS sequences,
       array_agg(taken.id) AS ids, array_agg(taken.fence) AS fences,
       array_agg(taken.deadline) AS deadlines, array_agg(taken.fires_at) AS fires_at,

-- name: publish_tickets
-- Many lanes in one statement. A ticket's place in its lane is the database's time and its number in the
-- batch, after what this publisher placed before: a clock that stands still keeps the order, one that was
-- set back is believed.
WITH place AS MATERIALIZED (
    SELECT CASE WHEN $9::bigint BETWEEN moment.now AND moment.now + 1000000
                THEN $9::bigint ELSE moment.now END AS before
      FROM (SELECT (extract(epoch FROM duly.now()) * 1000000)::bigint AS now) AS moment
), published AS (
    INSERT INTO duly.ready_tickets (tenant, pool, band, shard, fence, id, deadline, fires_at,
                                    sequence, task_tenant)
    SELECT ticket.tenant, ticket.pool, ticket.band, ticket.shard, ticket.fence, ticket.id,
           coalesce(ticket.deadline, duly.now() + make_interval(secs => $8)), ticket.fires_at,
           place.before + ticket.ordinal, ticket.task_tenant
      FROM unnest($1::integer[], $2::smallint[], $3::smallint[], $4::smallint[], $5::integer[],
                  $6::uuid[], $7::timestamptz[], $10::double precision[],
                  $11::integer[]) WITH ORDINALITY
           AS ticket(tenant, pool, band, shard, fence, id, deadline, fires_at, task_tenant,
                     ordinal)
     CROSS JOIN place
)
SELECT place.before FROM place

-- name: lease_tickets
-- Take and lease in one round trip: a taker that dies in between leaves nothing half done. What
-- another taker has in hand is skipped. The guards are those of lease_tasks and stand on the timer;
-- tickets are put in the order of addresses first, the one in which timers are locked. The first row
-- tells what was taken, and where it lay; the others are the leases. A ticket is never updated, so a
-- locked one is deleted where it lies. Tenants that use too many of an executor's slots are left out.
-- include: ready_tickets.taken tenants=$1 pools=$2 bands=$3 sequences=$4 most=$5 left_out=$8
), leased AS (
    UPDATE duly.timers
       SET queue = 0,
           due_at = duly.now() + least(make_interval(secs => $7),
                                       timers.timeout_ms * interval '1 millisecond'),
-- include: lease.granted holder=$6 lease_s=$7
      FROM (SELECT taken.shard, taken.id, taken.fence, taken.deadline
              FROM taken
             ORDER BY taken.shard, taken.id) AS ticket
     WHERE timers.shard = ticket.shard
       AND timers.id = ticket.id
-- include: lease.guard
 RETURNING timers.shard, timers.id, timers.tenant, timers.fence, timers.attempt,
           timers.started_at, timers.lease_until, timers.progress, timers.run_at, timers.priority
)
SELECT
-- include: ready_tickets.told
       NULL::uuid AS id, NULL::integer AS tenant, NULL::integer AS fence, NULL::integer AS attempt,
       NULL::timestamptz AS started_at, NULL::timestamptz AS lease_until, NULL::text AS progress,
       NULL::timestamptz AS run_at, NULL::text AS type,
       NULL::text AS payload, NULL::text AS policy_text, NULL::text AS url,
       NULL::text AS given_execution_key, NULL::timestamptz AS moved_to, NULL::smallint AS priority,
       NULL::text AS traceparent
  FROM taken
 UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
-- include: lease.columns timer=leased
  FROM leased
  JOIN duly.tasks ON tasks.shard = leased.shard AND tasks.id = leased.id

-- name: take_tickets
-- Beside another carrier, whose tickets and these are leased together: a taker that dies in between
-- loses them, and their tasks are published again.
-- include: ready_tickets.taken tenants=$1 pools=$2 bands=$3 sequences=$4 most=$5 left_out=$6
)
SELECT
-- include: ready_tickets.told
       NULL AS nothing
  FROM taken

-- name: count_tickets
-- How full each lane is, counting no further than anybody needs to know.
SELECT head.tenant, lane.pool, lane.band, count(*) AS tickets
  FROM unnest($1::integer[], $2::smallint[], $3::smallint[], $4::bigint[])
       AS lane(tenant, pool, band, after_sequence)
 CROSS JOIN LATERAL (
       SELECT coalesce(ready_tickets.task_tenant, lane.tenant) AS tenant
         FROM duly.ready_tickets
        WHERE ready_tickets.tenant = lane.tenant
          AND ready_tickets.pool = lane.pool
          AND ready_tickets.band = lane.band
          AND ready_tickets.sequence > lane.after_sequence
        LIMIT $5) AS head
 GROUP BY head.tenant, lane.pool, lane.band

-- name: sweep_tickets
-- Tickets that were not received in time. One batch of a sweep over all lanes in the order of the
-- key: past the deadline they are deleted, and the answer says where the next batch begins.
WITH batch AS MATERIALIZED (
    SELECT tenant, pool, band, sequence, deadline, ctid AS spot
      FROM duly.ready_tickets
     WHERE (tenant, pool, band, sequence) > ($1::integer, $2::smallint, $3::smallint, $4::bigint)
     ORDER BY tenant, pool, band, sequence
     LIMIT $5
), void AS MATERIALIZED (
    SELECT ready_tickets.ctid AS spot
      FROM batch
      JOIN duly.ready_tickets ON ready_tickets.ctid = batch.spot
     WHERE batch.deadline <= duly.now()
       FOR UPDATE OF ready_tickets SKIP LOCKED
), gone AS (
    DELETE FROM duly.ready_tickets
     USING void
     WHERE ready_tickets.ctid = void.spot
 RETURNING 1
)
SELECT batch.tenant, batch.pool, batch.band, batch.sequence,
       (SELECT count(*) FROM batch) AS seen, (SELECT count(*) FROM gone) AS gone
  FROM batch
 ORDER BY batch.tenant DESC, batch.pool DESC, batch.band DESC, batch.sequence DESC
 LIMIT 1

-- name: wipe_tickets
-- One batch of forgetting everything. What a taker has in hand is gone without our help.
WITH head AS MATERIALIZED (
    SELECT ctid AS spot
      FROM duly.ready_tickets
     ORDER BY tenant, pool, band, sequence
     LIMIT $1
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM duly.ready_tickets
     USING head
     WHERE ready_tickets.ctid = head.spot
 RETURNING 1
)
SELECT count(*) AS gone FROM gone

-- name: rebuild_tickets
-- Only for a fault of the queue's own files: by the names of the table and its index, or their
-- paths. A session that waited behind another's rebuild has seen other files, and does nothing.
SELECT duly.rebuild_ready_tickets(pg_relation_filenode('duly.ready_tickets')) AS is_rebuilt
 WHERE strpos($1, 'ready_tickets') > 0
    OR EXISTS (SELECT FROM pg_class
                WHERE (pg_class.oid = 'duly.ready_tickets'::regclass
                       OR pg_class.oid IN (SELECT pg_index.indexrelid FROM pg_index
                                            WHERE pg_index.indrelid = 'duly.ready_tickets'::regclass))
                  AND strpos($1, pg_relation_filepath(pg_class.oid)) > 0)
