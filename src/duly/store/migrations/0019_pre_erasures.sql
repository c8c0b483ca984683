-- name: forward
-- Headers and the concurrency key stand in the policy, and a URL may name a person as well: an erasure
-- reaches both.
GRANT UPDATE (policy, url) ON duly.tasks TO duly_purger;

-- name: reverse
-- The erased stays erased.
REVOKE UPDATE (policy, url) ON duly.tasks FROM duly_purger;
