-- name: add_stats
-- Adds, never sets: every node adds its own part of a minute. A waiting node adds to what the other
-- has committed by then, because the sums are made from the locked row. Histograms come as one list
-- for each column, cut into rows by their lengths; the longer of two decides the length of a sum.
WITH given AS (
    SELECT minute, tenant, type, submitted, started, completed, failed, retried,
           ($9::bigint[])[lag_from:lag_to] AS lag,
           ($12::bigint[])[run_from:run_to] AS run_time
      FROM unnest($1::timestamptz[], $2::integer[], $3::text[], $4::bigint[], $5::bigint[],
                  $6::bigint[], $7::bigint[], $8::bigint[], $10::integer[], $11::integer[],
                  $13::integer[], $14::integer[])
           AS given(minute, tenant, type, submitted, started, completed, failed, retried,
                    lag_from, lag_to, run_from, run_to)
), added AS (
    INSERT INTO duly.stats AS kept (minute, tenant, type, submitted, started, completed, failed,
                                    retried, lag, run_time)
    SELECT minute, tenant, type, submitted, started, completed, failed, retried, lag, run_time
      FROM given
        ON CONFLICT (tenant, type, minute) DO UPDATE
       SET submitted = kept.submitted + excluded.submitted,
           started = kept.started + excluded.started,
           completed = kept.completed + excluded.completed,
           failed = kept.failed + excluded.failed,
           retried = kept.retried + excluded.retried,
           lag = ARRAY(SELECT coalesce(mine, 0) + coalesce(theirs, 0)
                         FROM unnest(kept.lag, excluded.lag)
                              WITH ORDINALITY AS bucket(mine, theirs, position)
                        ORDER BY position),
           run_time = ARRAY(SELECT coalesce(mine, 0) + coalesce(theirs, 0)
                              FROM unnest(kept.run_time, excluded.run_time)
                                   WITH ORDINALITY AS bucket(mine, theirs, position)
                             ORDER BY position)
)
SELECT duly.now() AS now

-- name: read_stats
-- A page of minutes, oldest first; of one tenant, or of all for an operator.
SELECT minute, tenant, type, submitted, started, completed, failed, retried, lag, run_time
  FROM duly.stats
 WHERE minute >= $2
   AND ($1::integer IS NULL OR tenant = $1)
   AND (minute, tenant, type) > ($3, $4, $5)
 ORDER BY minute, tenant, type
 LIMIT $6

-- name: read_tenant_stats
-- The last minutes of every tenant added up, for an operator who asks which of them waits; bounded by
-- the rows that are read, newest minutes first.
WITH recent AS MATERIALIZED (
    SELECT tenant, submitted, started, completed, failed, retried, lag
      FROM duly.stats
     WHERE minute >= $1
     ORDER BY minute DESC, tenant, type
     LIMIT $2
), counted AS (
    SELECT tenant, sum(submitted)::bigint AS submitted, sum(started)::bigint AS started,
           sum(completed)::bigint AS completed, sum(failed)::bigint AS failed,
           sum(retried)::bigint AS retried
      FROM recent
     GROUP BY tenant
), buckets AS (
    SELECT tenant, position, sum(number)::bigint AS number
      FROM recent, unnest(lag) WITH ORDINALITY AS bucket(number, position)
     GROUP BY tenant, position
), histograms AS (
    SELECT tenant, array_agg(number ORDER BY position) AS lag FROM buckets GROUP BY tenant
)
SELECT tenants.name AS tenant, counted.submitted, counted.started, counted.completed,
       counted.failed, counted.retried, coalesce(histograms.lag, '{}') AS lag
  FROM counted
  JOIN duly.tenants ON tenants.id = counted.tenant
  LEFT JOIN histograms ON histograms.tenant = counted.tenant

-- name: delete_old_stats
-- A bounded batch of minutes past their retention.
DELETE FROM duly.stats
 WHERE (tenant, type, minute) IN (
       SELECT tenant, type, minute FROM duly.stats
        WHERE minute < duly.now() - make_interval(secs => $1)
        ORDER BY minute LIMIT $2)
RETURNING minute

-- name: read_points
-- One tenant's minutes added up to longer steps: the counts, and each histogram bucket by bucket.
-- The types are stepped through by the key, so other tenants' minutes are not read; the inner bound
-- also keeps the planner from joining them all with all. Two rows for each step; the buckets of a
-- sum are dense, because those of every minute are.
WITH RECURSIVE types(type) AS (
    (SELECT stats.type FROM duly.stats
      WHERE stats.tenant = $1 AND stats.type >= coalesce($4::text, '')
      ORDER BY stats.type LIMIT 1)
     UNION ALL
    SELECT next.type
      FROM types
     CROSS JOIN LATERAL (SELECT stats.type FROM duly.stats
                          WHERE stats.tenant = $1 AND stats.type > types.type
                          ORDER BY stats.type LIMIT 1) AS next
     WHERE $4::text IS NULL
), kept AS MATERIALIZED (
    SELECT floor(extract(epoch FROM found.minute) / $5::integer)::bigint AS step, found.submitted,
           found.started, found.completed, found.failed, found.retried, found.lag, found.run_time
      FROM types
     CROSS JOIN LATERAL (SELECT stats.minute, stats.submitted, stats.started, stats.completed,
                                stats.failed, stats.retried, stats.lag, stats.run_time
                           FROM duly.stats
                          WHERE stats.tenant = $1
                            AND stats.type = types.type
                            AND stats.minute >= $2
                            AND stats.minute < $3
                          LIMIT $6) AS found
     WHERE $4::text IS NULL OR types.type = $4
     LIMIT $6
)
SELECT step,
       ARRAY[sum(submitted), sum(started), sum(completed), sum(failed), sum(retried),
             count(*)]::bigint[] AS counts,
       NULL::bigint[] AS lag, NULL::bigint[] AS run_time
  FROM kept
 GROUP BY step
 UNION ALL
SELECT step, NULL, array_agg(lag ORDER BY position), array_agg(run_time ORDER BY position)
  FROM (SELECT kept.step, bucket.position, coalesce(sum(bucket.lag), 0)::bigint AS lag,
               coalesce(sum(bucket.run_time), 0)::bigint AS run_time
          FROM kept
         CROSS JOIN LATERAL unnest(kept.lag, kept.run_time)
               WITH ORDINALITY AS bucket(lag, run_time, position)
         GROUP BY kept.step, bucket.position) AS times
 GROUP BY step

-- name: read_endings
-- Attempts that another process handed out than the one that settled them: what only their records
-- know.
SELECT attempts.tenant, tasks.type, attempts.holder, attempts.outcome, attempts.state,
       extract(epoch FROM attempts.ended_at - attempts.started_at)::double precision AS run_s
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[]) AS asked(shard, id, fence)
  JOIN duly.attempts
    ON attempts.shard = asked.shard AND attempts.id = asked.id AND attempts.fence = asked.fence
  JOIN duly.tasks ON tasks.shard = asked.shard AND tasks.id = asked.id
