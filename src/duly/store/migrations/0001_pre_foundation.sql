-- name: forward
-- The schema, its roles (engine, tenant-facing, purging), and the one clock that every statement reads.

-- Roles belong to the whole server, so another database may have made them already.
DO $$
DECLARE
    role_name text;
BEGIN
    FOREACH role_name IN ARRAY ARRAY['duly_engine', 'duly_tenant', 'duly_purger'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role_name) THEN
            BEGIN
                -- NOINHERIT: what a member role may become by SET ROLE, it may not do unasked.
                EXECUTE format('CREATE ROLE %I NOLOGIN NOINHERIT', role_name);
            EXCEPTION
                WHEN duplicate_object OR unique_violation THEN NULL;
            END;
        END IF;
        -- Since PostgreSQL 16 the maker of a role administers it without being a member.
        IF NOT pg_has_role(current_user, role_name, 'usage') THEN
            EXECUTE format('GRANT %I TO CURRENT_USER', role_name);
        END IF;
    END LOOP;
    -- The engine may become the purger on purpose (SET ROLE), and is not it otherwise (NOINHERIT).
    IF NOT pg_has_role('duly_engine', 'duly_purger', 'member') THEN
        GRANT duly_purger TO duly_engine;
    END IF;
END
$$;

GRANT USAGE ON SCHEMA duly TO duly_engine, duly_tenant, duly_purger;
GRANT SELECT ON duly.migrations TO duly_engine, duly_tenant;

-- PostgreSQL's clock is the authority. A test session may set duly.test_now; a production server
-- refuses to start while it is set. STABLE and inlined, so it stays an index condition.
CREATE FUNCTION duly.now() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(nullif(current_setting('duly.test_now', true), '')::timestamptz, pg_catalog.now());

-- name: reverse
-- The roles stay: other databases of the server may use them.
DROP FUNCTION duly.now();
REVOKE ALL ON duly.migrations FROM duly_engine, duly_tenant;
REVOKE ALL ON SCHEMA duly FROM duly_engine, duly_tenant, duly_purger;
