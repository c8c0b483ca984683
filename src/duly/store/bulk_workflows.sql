-- name: walk
-- A tenant's workflows behind a position, newest first, of a bounded stretch that is looked at: those to
-- which an action can be applied. One that waits for the end of another is its schedule's to unpause. One
-- inside another is resumed with that, and one that was resumed is not resumed a second time.
SELECT id, name, looked_at, is_match
  FROM (SELECT id, name, count(*) OVER () AS looked_at, row_number() OVER (ORDER BY id DESC) AS place,
               CASE $9
                    WHEN 'cancel_workflows' THEN state IS NULL AND stop_reason IS DISTINCT FROM 'cancelled'
                    WHEN 'pause_workflows' THEN state IS NULL AND paused_at IS NULL
                    WHEN 'unpause_workflows' THEN state IS NULL AND paused_by <> 'queue_one'
                    ELSE state IN ('FAILED', 'CANCELLED') AND compensating_at IS NULL
                         AND parent_node IS NULL
                         AND NOT EXISTS (SELECT FROM duly.workflows AS later
                                          WHERE later.shard = stretch.shard
                                            AND later.root = coalesce(stretch.root, stretch.id)
                                            AND later.resumed_from = stretch.id) END IS TRUE
               AND ($3::text IS NULL OR coalesce(state, 'RUNNING') = $3)
               AND ($4::text IS NULL OR name = $4)
               AND ($5::text IS NULL OR tags ->> $5 = $6)
               AND ($7::timestamptz IS NULL OR created_at > $7)
               AND created_at <= $8 AS is_match
          FROM (SELECT *
                  FROM duly.workflows
                 WHERE tenant = $1 AND id < $2
                 ORDER BY tenant DESC, id DESC
                 LIMIT $10) AS stretch) AS numbered
 WHERE is_match OR place = looked_at
 ORDER BY id DESC
