-- name: forward
-- Keys with the role viewer: what an operator reads, and no change.
ALTER TABLE duly.api_keys DROP CONSTRAINT api_keys_role_check;
ALTER TABLE duly.api_keys ADD CONSTRAINT api_keys_role_check
      CHECK (role IN ('viewer', 'producer', 'worker', 'operator', 'admin'));
ALTER TABLE duly.api_keys DROP CONSTRAINT api_keys_check1;
ALTER TABLE duly.api_keys ADD CONSTRAINT api_keys_check1
      CHECK (reach = 'tenant' OR role IN ('viewer', 'operator', 'admin'));

-- name: reverse
-- Older code knows no viewers: their keys are revoked, and are workers' keys of their tenant on paper.
UPDATE duly.api_keys
   SET role = 'worker', reach = 'tenant', revoked_at = coalesce(revoked_at, duly.now())
 WHERE role = 'viewer';
ALTER TABLE duly.api_keys DROP CONSTRAINT api_keys_role_check;
ALTER TABLE duly.api_keys ADD CONSTRAINT api_keys_role_check
      CHECK (role IN ('producer', 'worker', 'operator', 'admin'));
ALTER TABLE duly.api_keys DROP CONSTRAINT api_keys_check1;
ALTER TABLE duly.api_keys ADD CONSTRAINT api_keys_check1
      CHECK (reach = 'tenant' OR role IN ('operator', 'admin'));
