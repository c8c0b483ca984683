-- name: delete_finished
-- One batch of a month that cannot be dropped yet; the function says what it may delete, and why.
SELECT examined, deleted, last_shard, last_id
  FROM duly.delete_finished($1::date, duly.now() - make_interval(secs => $2::double precision),
                            $3::smallint, $4::uuid, $5::integer)

-- name: delete_closed_breakers
-- Breakers that closed by themselves long ago; the gates have not looked at them since. One that is
-- opened again at this moment stays.
DELETE FROM duly.breakers
 WHERE (tenant, host) IN (SELECT tenant, host FROM duly.breakers
                           WHERE open_until < duly.now() - make_interval(secs => $1)
                           LIMIT $2)
   AND open_until < duly.now() - make_interval(secs => $1)
RETURNING host
