-- name: notify
-- Many hints in one small commit of their own: inside the transaction of an insert they would make
-- every such commit wait for every other.
SELECT pg_notify(hint.channel, hint.payload)
  FROM unnest($1::text[], $2::text[]) AS hint(channel, payload)
