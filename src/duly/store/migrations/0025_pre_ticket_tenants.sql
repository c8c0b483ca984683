-- name: forward
-- Webhooks of all tenants lie in one queue; an executor takes from it by tenant. NULL: published by a
-- version that does not know the column.
ALTER TABLE duly.ready_tickets ADD COLUMN task_tenant integer;

-- How full a lane of the tenant is: of the queue that webhooks share, only its own tickets.
CREATE FUNCTION duly.tenant_lane_depth(lane_pool smallint, lane_band smallint, most integer)
RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
AS $$
BEGIN
    RETURN (SELECT count(*)
              FROM (SELECT FROM duly.ready_tickets
                     WHERE tenant = CASE WHEN lane_pool = 0 THEN 0 ELSE duly.current_tenant() END
                       AND pool = lane_pool
                       AND band = lane_band
                       AND coalesce(task_tenant, tenant) = duly.current_tenant()
                     LIMIT most) AS counted);
END
$$;
REVOKE ALL ON FUNCTION duly.tenant_lane_depth FROM PUBLIC;
GRANT EXECUTE ON FUNCTION duly.tenant_lane_depth TO duly_tenant;

-- name: reverse
DROP FUNCTION duly.tenant_lane_depth;
ALTER TABLE duly.ready_tickets DROP COLUMN task_tenant;
