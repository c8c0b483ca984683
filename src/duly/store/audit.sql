-- name: append_audit
-- In the transaction of what it records, so that neither is ever there without the other.
INSERT INTO duly.audit (tenant, at, actor, action, subject, detail)
VALUES ($1, duly.now(), $2, $3, $4, $5)

-- name: list_audit
-- One tenant's record, newest first.
SELECT id, at, actor, action, subject, detail
  FROM duly.audit
 WHERE tenant = $1
   AND id < $2
   AND ($3::text IS NULL OR action = $3)
   AND ($4::text IS NULL OR actor = $4)
 ORDER BY id DESC
 LIMIT $5
