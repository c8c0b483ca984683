-- name: list_occurrences
-- A page of one schedule's ledger, newest nominal time first.
SELECT nominal_at, decided_at, late_s, verdict, task
  FROM duly.occurrences
 WHERE occurrences.shard = $1
   AND occurrences.schedule = $3
   AND occurrences.tenant + 0 = $2
   AND occurrences.nominal_at < $4
   AND ($5::text IS NULL OR occurrences.verdict = $5)
   AND ($6::timestamptz IS NULL OR occurrences.nominal_at >= $6)
 ORDER BY occurrences.nominal_at DESC
 LIMIT $7

-- name: read_cadence
-- Of the newest occurrences of each schedule: how many were expected to fire, and how many did so on
-- time. What the definition or a person left out was not expected.
SELECT asked.id, count(*) FILTER (WHERE recent.verdict NOT IN
                                  ('EXCLUDED', 'SKIPPED_DST', 'SKIPPED_PAUSED')) AS expected,
       count(*) FILTER (WHERE recent.verdict = 'FIRED') AS fired
  FROM unnest($1::smallint[], $2::uuid[]) AS asked(shard, id)
  LEFT JOIN LATERAL (
       SELECT occurrences.verdict
         FROM duly.occurrences
        WHERE occurrences.shard = asked.shard
          AND occurrences.schedule = asked.id
          AND occurrences.verdict NOT IN ('TRIGGERED', 'BACKFILLED')
        ORDER BY occurrences.nominal_at DESC
        LIMIT $3) AS recent ON true
 GROUP BY asked.id
