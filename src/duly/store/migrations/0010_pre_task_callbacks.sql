-- name: forward
-- Callbacks of single tasks. What tells of a task's end has a row in `workflow_timers` from its insert on:
-- kind `callback`, the task's id as `workflow`, due at infinity until the task has ended.

-- Bit 0 behind the node bit says that a plain task may have one; domain/ids.py computes the same. Ids of
-- before have it by chance, which costs a look that finds nothing.
CREATE FUNCTION duly.has_callback(id uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(uuid_send(id), 7) & 3 = 1;

CREATE OR REPLACE FUNCTION duly.make_task_id(placed timestamptz, shard smallint, random uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(replace(duly.id_bound(placed)::text, '-', ''), 12) || '7'
        || lpad(to_hex(shard::integer << 2), 3, '0')
        || right(replace(random::text, '-', ''), 16))::uuid;

-- name: reverse
-- Ends that were to be told no longer are.
DELETE FROM duly.workflow_timers WHERE kind = 'callback' AND duly.has_callback(workflow);
DROP FUNCTION duly.has_callback;
CREATE OR REPLACE FUNCTION duly.make_task_id(placed timestamptz, shard smallint, random uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(replace(duly.id_bound(placed)::text, '-', ''), 12) || '7'
        || lpad(to_hex((shard::integer << 2) | (get_byte(uuid_send(random), 0) & 1)), 3, '0')
        || right(replace(random::text, '-', ''), 16))::uuid;
