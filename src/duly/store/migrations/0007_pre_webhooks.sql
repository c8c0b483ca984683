-- name: forward
-- What webhooks are signed with. Whoever signs must know the secret, so it is kept as it is.
CREATE TABLE duly.webhook_secrets (
    tenant     integer NOT NULL,
    id         text NOT NULL,
    secret     bytea NOT NULL,
    created_at timestamptz NOT NULL,
    created_by text NOT NULL,
    expires_at timestamptz,
    PRIMARY KEY (tenant, id)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.webhook_secrets TO duly_engine, duly_tenant;
ALTER TABLE duly.webhook_secrets ENABLE ROW LEVEL SECURITY;
ALTER TABLE duly.webhook_secrets FORCE ROW LEVEL SECURITY;
DO $$
BEGIN
    EXECUTE format('CREATE POLICY every_row ON duly.webhook_secrets TO %I, duly_engine, duly_purger '
                   'USING (true) WITH CHECK (true)', current_user);
END
$$;
CREATE POLICY own_rows ON duly.webhook_secrets TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- name: reverse
DROP TABLE duly.webhook_secrets;
