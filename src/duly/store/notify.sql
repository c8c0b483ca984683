-- name: notify
-- Many rings in one small commit of their own: inside the transaction of an insert they would make
-- every such commit wait for every other.
SELECT pg_notify(ring.channel, ring.payload)
  FROM unnest($1::text[], $2::text[]) AS ring(channel, payload)
