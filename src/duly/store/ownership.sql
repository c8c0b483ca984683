-- name: keep_assignments
-- All that a steady node says and hears, in one round trip: I live, these assignments are still mine, who
-- else lives and with how much, and is anything to be had. A assignment is renewed only by its holder
-- under its epoch; after expiry too, if it is still free. A new node notifies, so that others
-- release a share at once. An expiry further ahead than any lease is a clock that stepped back, and
-- counts as expired; and no wait for tickets is longer than a lease and a ticket, whatever the
-- clock did.
WITH announced AS (
    INSERT INTO duly.nodes (id, name, version, roles, started_at, seen_at, expires_at, failing,
                            carrier)
    VALUES ($1, $2, $3, $4, duly.now(), duly.now(), duly.now() + make_interval(secs => $5),
            $12::text::jsonb, $13::text::jsonb)
        ON CONFLICT (id) DO UPDATE
       SET seen_at = EXCLUDED.seen_at, expires_at = EXCLUDED.expires_at, failing = EXCLUDED.failing,
           carrier = EXCLUDED.carrier
 RETURNING xmax = 0 AS is_new
), renewed AS (
    UPDATE duly.ownership
       SET expires_at = duly.now() + make_interval(secs => $5),
           void_at = least(ownership.void_at, duly.now() + make_interval(secs => $5 + $11))
      FROM unnest($6::text[], $7::smallint[], $8::bigint[]) AS mine(kind, number, epoch)
     WHERE ownership.kind = mine.kind
       AND ownership.number = mine.number
       AND ownership.epoch = mine.epoch
       AND ownership.holder = $1
 RETURNING ownership.kind, ownership.number, ownership.void_at
), assignments AS (
    SELECT ownership.kind, ownership.number, ownership.holder, ownership.epoch,
           ownership.expires_at,
           ownership.holder IS NOT NULL
           AND ownership.holder <> $1
           AND ownership.expires_at > duly.now()
           AND ownership.expires_at <= duly.now() + make_interval(secs => $9) AS is_taken
      FROM duly.ownership
     WHERE (ownership.kind, ownership.number) NOT IN (SELECT kind, number FROM renewed)
), others AS (
    SELECT nodes.id,
           (SELECT count(*) FROM assignments
             WHERE assignments.kind = 'slot' AND assignments.holder = nodes.id AND assignments.is_taken) AS slots
      FROM duly.nodes
     WHERE 'scheduler' = ANY(nodes.roles)
       AND nodes.id <> $1
       AND nodes.expires_at > duly.now()
       AND nodes.expires_at <= duly.now() + make_interval(secs => $9)
     ORDER BY nodes.id
     LIMIT $10
), notified AS (
    SELECT pg_notify('duly_ownership', $1::text) FROM announced WHERE is_new
)
SELECT ARRAY(SELECT kind FROM renewed ORDER BY kind, number) AS renewed_kinds,
       ARRAY(SELECT number FROM renewed ORDER BY kind, number) AS renewed_numbers,
       ARRAY(SELECT void_at FROM renewed ORDER BY kind, number) AS renewed_void_at,
       ARRAY(SELECT id FROM others ORDER BY id) AS node_ids,
       ARRAY(SELECT slots FROM others ORDER BY id) AS node_slots,
       ARRAY(SELECT kind FROM assignments WHERE NOT is_taken ORDER BY kind) AS free_kinds,
       ARRAY(SELECT kind FROM assignments WHERE holder = $1 ORDER BY kind, number) AS stray_kinds,
       ARRAY(SELECT number FROM assignments WHERE holder = $1 ORDER BY kind, number) AS stray_numbers,
       ARRAY(SELECT epoch FROM assignments WHERE holder = $1 ORDER BY kind, number) AS stray_epochs,
       (SELECT extract(epoch FROM min(expires_at) - duly.now())::double precision
          FROM assignments WHERE is_taken) AS next_expiry_s,
       (SELECT count(*) FROM notified) AS hints

-- name: claim_assignments
-- Claim what is free, what a dead holder left, and strays: what a claim of ours of unknown outcome
-- took, named with its epoch, so that a claim that comes late cannot take them once more.
-- Concurrent claims skip each other's rows (SKIP LOCKED); the guard stands on the updated row too.
-- Tickets of a dead holder are void one ticket lifetime after its lease; `void_at` is never further
-- than a lease and a ticket away, whatever the clock did meanwhile.
WITH stray AS (
    SELECT number, epoch FROM unnest($3::smallint[], $8::bigint[]) AS named(number, epoch)
), free AS (
    SELECT ownership.kind, ownership.number
      FROM duly.ownership
     WHERE ownership.kind = $2
       AND (ownership.holder IS NULL
            OR (ownership.holder = $1
                AND (ownership.number, ownership.epoch) IN (SELECT * FROM stray))
            OR ownership.expires_at <= duly.now()
            OR ownership.expires_at > duly.now() + make_interval(secs => $7))
     ORDER BY ownership.number
     LIMIT $4
       FOR UPDATE SKIP LOCKED
)
UPDATE duly.ownership
   SET holder = $1,
       epoch = ownership.epoch + 1,
       expires_at = duly.now() + make_interval(secs => $5),
       void_at = least(
           CASE WHEN ownership.holder IS NULL THEN ownership.void_at
                ELSE greatest(ownership.void_at,
                              ownership.expires_at + make_interval(secs => $6)) END,
           duly.now() + make_interval(secs => $5 + $6))
  FROM free
 WHERE ownership.kind = free.kind
   AND ownership.number = free.number
   AND (ownership.holder IS NULL
        OR (ownership.holder = $1
            AND (ownership.number, ownership.epoch) IN (SELECT * FROM stray))
        OR ownership.expires_at <= duly.now()
        OR ownership.expires_at > duly.now() + make_interval(secs => $7))
RETURNING ownership.kind, ownership.number, ownership.epoch, ownership.void_at

-- name: release_assignments
-- Hand back what is named, if it is still ours; a node that leaves takes its row along. Others are
-- notified in the same commit, so they look when there is something to see. The tickets of this holder
-- stay good for their lifetime, so the next one's capped work waits for that.
WITH released AS (
    UPDATE duly.ownership
       SET holder = NULL,
           expires_at = duly.now(),
           void_at = greatest(ownership.void_at, duly.now() + make_interval(secs => $5))
      FROM unnest($2::text[], $3::smallint[], $4::bigint[]) AS mine(kind, number, epoch)
     WHERE ownership.kind = mine.kind
       AND ownership.number = mine.number
       AND ownership.epoch = mine.epoch
       AND ownership.holder = $1
 RETURNING ownership.number
), gone AS (
    DELETE FROM duly.nodes WHERE nodes.id = $1 AND $6 RETURNING nodes.id
)
SELECT (SELECT count(*) FROM released) AS released, pg_notify('duly_ownership', $1::text)

-- name: list_ownership
-- For operators: every assignment, who has it, and since which epoch. A name is missing when the holder's
-- node is gone already.
SELECT ownership.kind, ownership.number, ownership.holder, nodes.name AS node, ownership.epoch,
       ownership.expires_at, ownership.void_at,
       ownership.holder IS NOT NULL AND ownership.expires_at > duly.now() AS is_owned
  FROM duly.ownership
  LEFT JOIN duly.nodes ON nodes.id = ownership.holder
 ORDER BY ownership.kind, ownership.number
 LIMIT $1

-- name: delete_dead_nodes
-- Every process start is a new row; what has long been dead explains nothing any more.
DELETE FROM duly.nodes
 WHERE nodes.id IN (SELECT id FROM duly.nodes
                     WHERE expires_at < duly.now() - make_interval(secs => $1)
                     LIMIT $2)
RETURNING nodes.id
