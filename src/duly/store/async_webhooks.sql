-- name: accept_async
-- The receiver of a webhook took the task over: from now on only its settlement, by the fence that
-- the request carried, or the attempt's time limit ends the lease. The fence names the one lease
-- that is meant, so saying it twice, or by either end, is the same. No heartbeat comes for the
-- receiver; `confirmed` is taken back, so that its silence never looks like a task that kills its
-- worker.
UPDATE duly.timers
   SET holder = $4,
       queue = 0,
       confirmed = false,
       lease_until = timers.started_at + timers.timeout_ms * interval '1 millisecond',
       due_at = timers.started_at + timers.timeout_ms * interval '1 millisecond'
  FROM unnest($1::smallint[], $2::uuid[], $3::integer[]) AS lease(shard, id, fence)
 WHERE timers.shard = lease.shard
   AND timers.id = lease.id
   AND timers.fence = lease.fence
   AND timers.holder IS NOT NULL
   AND timers.pool = 0
RETURNING timers.id, timers.fence
