-- name: see_worker
-- A worker came for work: here since its first time, alive for a while longer.
INSERT INTO duly.workers AS known (tenant, id, holder, pools, started_at, seen_at, expires_at)
VALUES ($1, $2, $3, $4, duly.now(), duly.now(), duly.now() + make_interval(secs => $5))
    ON CONFLICT (tenant, id) DO UPDATE
   SET pools = excluded.pools, seen_at = excluded.seen_at, expires_at = excluded.expires_at

-- name: touch_worker
-- A worker whose handlers are all busy sends heartbeats only. One that deregistered stays gone: then
-- it expired in the instant in which it was last seen.
UPDATE duly.workers
   SET seen_at = duly.now(), expires_at = duly.now() + make_interval(secs => $3)
 WHERE tenant = $1 AND id = $2 AND expires_at > seen_at

-- name: deregister_worker
-- A worker has drained and takes no more tasks. Its row stays for a while: `explain` says since when
-- its pools have no worker.
UPDATE duly.workers
   SET seen_at = duly.now(), expires_at = duly.now()
 WHERE tenant = $1 AND id = $2

-- name: doubt_worker
-- A worker hung up while it waited for tasks: unless it comes again soon, it counts as gone.
UPDATE duly.workers
   SET expires_at = least(workers.expires_at, duly.now() + make_interval(secs => $3))
 WHERE tenant = $1 AND id = $2
