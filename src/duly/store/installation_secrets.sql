-- name: read_secret
-- Made once by a migration, never changed; the role of tenants cannot read it.
SELECT secret FROM duly.installation_secrets WHERE name = $1
