-- name: forward
-- Headers and the concurrency key stand in the policy, and a URL may name a person as well. Filters
-- of erasures read both walls: the rows of one tenant, and the erased columns alone.
GRANT UPDATE (policy, url) ON duly.tasks TO duly_purger;

-- name: reverse
-- The erased stays erased.
REVOKE UPDATE (policy, url) ON duly.tasks FROM duly_purger;
