-- name: read_fired
-- Which of these occurrences made a task already: a backfill leaves them alone, and says how many.
SELECT nominal_at
  FROM duly.occurrences
 WHERE occurrences.shard = $1
   AND occurrences.schedule = $2
   AND occurrences.tenant + 0 = $3
   AND occurrences.nominal_at = ANY ($4::timestamptz[])
   AND occurrences.task IS NOT NULL
