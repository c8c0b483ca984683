-- name: forward
-- What housekeeping needs: emptying a month that a few live tasks pin, and finding old statistics.

-- Examines at most `examine_max` tasks of one past month, in the order of their keys after
-- (after_shard, after_id), and deletes those that ended before `finished_before`, with all their
-- attempts. The engine may not delete there; through this it can delete nothing that is live or
-- recent. A final attempt is the proof of an end, and an end never changes, so no lock is needed.
CREATE FUNCTION duly.delete_finished(month date, finished_before timestamptz, after_shard smallint,
                                     after_id uuid, examine_max integer)
RETURNS TABLE (examined integer, deleted integer, last_shard smallint, last_id uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '500ms'
AS $$
DECLARE
    suffix text := to_char(month, 'YYYY_MM');
    upper_bound uuid := duly.id_bound(
        (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC');
BEGIN
    -- Old months only ever empty; the current one is where new tasks go.
    IF upper_bound > duly.id_bound(duly.now()) OR to_regclass('duly.tasks_' || suffix) IS NULL
       OR to_regclass('duly.attempts_' || suffix) IS NULL THEN
        RETURN QUERY SELECT 0, 0, after_shard, after_id;
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format($statement$
        WITH candidates AS MATERIALIZED (
            SELECT tasks.shard, tasks.id
              FROM duly.%1$I AS tasks
             WHERE (tasks.shard, tasks.id) > ($1, $2)
             ORDER BY tasks.shard, tasks.id
             LIMIT least($3, 10000)
        ), finished AS MATERIALIZED (
            SELECT candidates.shard, candidates.id
              FROM candidates
             WHERE EXISTS (SELECT FROM duly.%2$I AS attempts
                            WHERE attempts.shard = candidates.shard
                              AND attempts.id = candidates.id
                              AND attempts.state IS NOT NULL
                              AND attempts.ended_at < $4)
               AND NOT EXISTS (SELECT FROM duly.timers
                                WHERE timers.shard = candidates.shard
                                  AND timers.id = candidates.id)
        ), forgotten AS (
            DELETE FROM duly.%2$I AS attempts
             USING finished
             WHERE attempts.shard = finished.shard AND attempts.id = finished.id
        ), gone AS (
            DELETE FROM duly.%1$I AS tasks
             USING finished
             WHERE tasks.shard = finished.shard AND tasks.id = finished.id
            RETURNING 1
        ), final AS (
            SELECT candidates.shard, candidates.id
              FROM candidates
             ORDER BY candidates.shard DESC, candidates.id DESC
             LIMIT 1
        )
        SELECT (SELECT count(*) FROM candidates)::integer,
               (SELECT count(*) FROM gone)::integer,
               coalesce((SELECT final.shard FROM final), $1),
               coalesce((SELECT final.id FROM final), $2)
        $statement$, 'tasks_' || suffix, 'attempts_' || suffix)
        USING after_shard, after_id, examine_max, finished_before;
END
$$;

REVOKE ALL ON FUNCTION duly.delete_finished(date, timestamptz, smallint, uuid, integer) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION duly.delete_finished(date, timestamptz, smallint, uuid, integer)
    TO duly_engine;

-- Statistics are read by time and forgotten by time; their key begins with the tenant.
CREATE INDEX stats_by_minute ON duly.stats (minute, tenant, type);

-- name: reverse
-- Everything of this migration.
DROP INDEX duly.stats_by_minute;
DROP FUNCTION duly.delete_finished(date, timestamptz, smallint, uuid, integer);
