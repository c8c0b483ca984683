-- name: server_facts
-- One look at what decides whether duly may run here: version, durability, the login's planner
-- settings, and whether the clock is overridden for this database or role.
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_version') AS version_text,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('enable_sort') = 'off'
           AND current_setting('plan_cache_mode') = 'force_generic_plan' AS is_login_ready,
       coalesce(current_setting('duly.test_now', true), '') AS test_now,
       current_database() AS database,
       current_user AS login

-- name: planner_settings
-- Plans must not depend on statistics: `timers` is empty at one moment and full at the next. These
-- belong to the login, because a transaction-mode pooler keeps no session state. Without sorts, a
-- load planned while the table is empty still walks the index that holds its order. And the plan that
-- lasts is made at once: otherwise every connection plans each statement five times before.
SELECT format('ALTER ROLE %I IN DATABASE %I SET %s = %s', current_user, current_database(), name,
              value) AS statement
  FROM (VALUES ('enable_hashjoin', 'off'), ('enable_mergejoin', 'off'), ('enable_seqscan', 'off'),
               ('enable_bitmapscan', 'off'), ('enable_sort', 'off'), ('jit', 'off'),
               ('plan_cache_mode', 'force_generic_plan')) AS setting(name, value)

-- name: one_at_a_time
-- Processes that start together on a fresh database would give one login its settings at once, which
-- the catalogue refuses. Until the transaction ends.
SELECT pg_advisory_xact_lock(7305013)

-- name: login_is_engine
-- Without membership the login would meet row-level security and see nothing.
SELECT pg_has_role(current_user, 'duly_engine', 'usage') AS is_engine,
       pg_has_role(current_user, 'duly_tenant', 'member') AS may_be_tenant

-- name: create_login
-- The embedded server's application login: neither owner nor superuser.
SELECT format('CREATE ROLE %I LOGIN PASSWORD %L IN ROLE duly_engine, duly_tenant', $1::text, $2::text)
           AS statement
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = $1::text)

-- name: create_database
-- The embedded server is made with PostgreSQL's own databases only.
SELECT format('CREATE DATABASE %I', $1::text) AS statement
 WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = $1::text)

-- name: become_tenant
-- For the rest of this transaction: the role that row-level security binds, and whose rows. What a
-- tenant asks for is filtered in many ways: planned for what is asked, where that is cheaper. And no
-- statement of it runs for longer than is given.
SELECT set_config('role', 'duly_tenant', true), set_config('duly.tenant', $1, true),
       set_config('plan_cache_mode', 'auto', true), set_config('statement_timeout', $2, true)

-- name: set_test_clock
-- What a test believes the time to be, for this session alone; no server is started with it. What a
-- test stores need not survive a power cut.
SELECT set_config('duly.test_now', $1, false), set_config('synchronous_commit', 'off', false)
