-- name: pause
-- Under the lock of the row itself: from now on nothing of it starts. Who paused it first stands.
UPDATE duly.workflows
   SET paused_at = duly.now(), paused_by = $4
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.ended_at IS NULL
   AND workflows.paused_at IS NULL
RETURNING workflows.id

-- name: hold_timers
-- What was due or will be is due at no instant, and its tickets are void; what runs goes on. A second
-- statement, which sees what was released before the lock.
UPDATE duly.timers
   SET held_due_at = timers.due_at,
       due_at = NULL,
       fence = timers.fence + 1
 WHERE timers.shard = $1
   AND timers.id > $2
   AND timers.id <= $3
   AND timers.tenant + 0 = $4
   AND timers.holder IS NULL
   AND timers.due_at IS NOT NULL

-- name: unpause
-- One that was paused, by that name if one is given: what waits for another one's end may have been
-- paused by its owner since.
UPDATE duly.workflows
   SET paused_at = NULL, paused_by = NULL
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.paused_at IS NOT NULL
   AND ($4::text IS NULL OR workflows.paused_by = $4)
   AND workflows.ended_at IS NULL
RETURNING workflows.id

-- name: release_timers
-- Everything is due when it was before. Of a first attempt, the time of the pause is no lag.
UPDATE duly.timers
   SET due_at = timers.held_due_at,
       held_due_at = NULL,
       run_at = CASE WHEN timers.attempt = 0 AND timers.held_due_at < duly.now() THEN duly.now()
                     ELSE timers.run_at END
 WHERE timers.shard = $1
   AND timers.id > $2
   AND timers.id <= $3
   AND timers.tenant + 0 = $4
   AND timers.held_due_at IS NOT NULL
RETURNING timers.id, timers.tenant, timers.shard, timers.queue, timers.fence, timers.due_at,
          timers.priority, timers.type, timers.concurrency_key, timers.concurrency_limit, timers.host

-- name: unpark
-- Steps that came due during the pause were put off until its end.
UPDATE duly.workflow_timers
   SET due_at = duly.now(), fence = workflow_timers.fence + 1
 WHERE workflow_timers.shard = $1
   AND workflow_timers.workflow = $2
   AND workflow_timers.due_at = 'infinity'
   AND workflow_timers.kind = ANY ($3::text[])
RETURNING workflow_timers.workflow

-- name: park
-- A step of a paused workflow: until the end of the pause.
UPDATE duly.workflow_timers
   SET due_at = 'infinity', fence = workflow_timers.fence + 1
 WHERE shard = $1 AND workflow = $2 AND kind = $3 AND node = $4 AND fence = $5
   AND due_at <= duly.now()
RETURNING workflow

-- name: queue_behind
-- The end of one workflow starts another; not where it has ended already, or another waits for it.
UPDATE duly.workflows
   SET next_workflow = $4
 WHERE workflows.shard = $1
   AND workflows.id = $2
   AND workflows.tenant + 0 = $3
   AND workflows.ended_at IS NULL
   AND workflows.next_workflow IS NULL
RETURNING workflows.id
