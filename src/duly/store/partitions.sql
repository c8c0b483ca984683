-- name: list_partitions
-- The months that exist, with both tables, so that placement can be clamped to them.
SELECT to_date(right(child.relname, 7), 'YYYY_MM') AS month
  FROM pg_inherits
  JOIN pg_class child ON child.oid = pg_inherits.inhrelid
 WHERE pg_inherits.inhparent = 'duly.tasks'::regclass
   AND to_regclass('duly.attempts_' || right(child.relname, 7)) IS NOT NULL
 ORDER BY month

-- name: placement_range
-- Nothing new is placed before the database's own month, so that old months only ever empty.
SELECT date_trunc('month', duly.now() AT TIME ZONE 'UTC')::date AS first_month,
       (SELECT max(to_date(right(child.relname, 7), 'YYYY_MM'))
          FROM pg_inherits
          JOIN pg_class child ON child.oid = pg_inherits.inhrelid
         WHERE pg_inherits.inhparent = 'duly.tasks'::regclass) AS last_month

-- name: create_ahead
-- This month and the next ones; attempts first, so that a task never lacks a place for its end.
SELECT duly.create_partition(parent, (date_trunc('month', duly.now() AT TIME ZONE 'UTC')
                                      + make_interval(months => ahead))::date) AS created
  FROM generate_series(0, $1::integer) AS ahead
 CROSS JOIN unnest(ARRAY['attempts', 'tasks']) WITH ORDINALITY AS parents(parent, rank)
 ORDER BY ahead, rank

-- name: drop_behind
-- One old month, if nothing in it is live and its newest finish is older than the retention.
SELECT duly.drop_partition($1::date, duly.now() - make_interval(secs => $2::double precision))
           AS kept_because
