-- name: forward
-- Lists go by creation. Ids are placed by the fire time, so their order is another one; this index
-- takes the place of (tenant, id), and an insert writes as many indexes as before.
CREATE INDEX tasks_by_creation ON duly.tasks (tenant, created_at, id);
DROP INDEX duly.tasks_of_tenant;

-- name: reverse
-- Lists of the code before this go by id.
CREATE INDEX tasks_of_tenant ON duly.tasks (tenant, id);
DROP INDEX duly.tasks_by_creation;
