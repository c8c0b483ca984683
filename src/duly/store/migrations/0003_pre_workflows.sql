-- name: forward
-- Workflows: graphs of ordinary tasks. A node is a task whose id says so, and of which workflow.

-- Ids --------------------------------------------------------------------------------------------
-- domain/ids.py computes the same; tests/store/test_twins.py compares them.
--
--    48 bits time | version | 10 bits shard | node bit | 1 random | variant | 38 random | 24 bits number
--
-- All ids of a workflow agree but for the number, and its own number is 0: a range of a primary key
-- holds all of its nodes, wherever a task has rows, and no table needs a column for it.

-- Bit 1 behind the shard is set in ids of workflows and nodes, and clear in those of plain tasks.
CREATE OR REPLACE FUNCTION duly.make_task_id(placed timestamptz, shard smallint, random uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(replace(duly.id_bound(placed)::text, '-', ''), 12) || '7'
        || lpad(to_hex((shard::integer << 2) | (get_byte(uuid_send(random), 0) & 1)), 3, '0')
        || right(replace(random::text, '-', ''), 16))::uuid;

CREATE FUNCTION duly.is_node(id uuid) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN get_byte(uuid_send(id), 7) & 2 = 2;

CREATE FUNCTION duly.workflow_of(id uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(id::text, 30) || '000000')::uuid;

CREATE FUNCTION duly.node_number(id uuid) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ('x' || right(id::text, 6))::bit(24)::integer;

CREATE FUNCTION duly.node_id(workflow uuid, number integer) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(workflow::text, 30) || lpad(to_hex(number), 6, '0'))::uuid;

-- Tables -----------------------------------------------------------------------------------------

-- One row for each workflow: the lock that every change of its nodes takes first, and what its ended
-- nodes add up to. `live`: nodes that have not ended. `stop_reason`: since then nothing is released, and
-- what is not running is cancelled. Fillfactor: the counts change with every batch of ends.
CREATE TABLE duly.workflows (
    shard       smallint NOT NULL,
    tenant      integer NOT NULL,
    nodes       integer NOT NULL,
    edges       integer NOT NULL,
    live        integer NOT NULL,
    completed   integer NOT NULL DEFAULT 0,
    failed      integer NOT NULL DEFAULT 0,
    skipped     integer NOT NULL DEFAULT 0,
    cancelled   integer NOT NULL DEFAULT 0,
    id          uuid NOT NULL,
    created_at  timestamptz NOT NULL,
    deadline_at timestamptz,
    ended_at    timestamptz,
    name        text NOT NULL,
    on_failure  text NOT NULL,
    state       text,
    stop_reason text,
    callback    text,
    tags        jsonb,
    PRIMARY KEY (shard, id),
    CHECK (live >= 0),
    CHECK (nodes = live + completed + failed + skipped + cancelled),
    CHECK ((live = 0) = (ended_at IS NOT NULL)),
    CHECK ((state IS NULL) = (ended_at IS NULL)),
    CHECK (state IN ('COMPLETED', 'FAILED', 'CANCELLED')),
    CHECK (on_failure IN ('finish_branches', 'stop')),
    CHECK (stop_reason IN ('cancelled', 'failure', 'deadline'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
-- Lists of one tenant, newest first: ids begin with the time of the start.
CREATE INDEX workflows_of_tenant ON duly.workflows (tenant, id);
-- Retention reads them by their end.
CREATE INDEX workflows_ended ON duly.workflows (ended_at) WHERE ended_at IS NOT NULL;

-- The graph: each node with the numbers of its parents and children. Its task is in `tasks`.
CREATE TABLE duly.workflow_nodes (
    shard     smallint NOT NULL,
    wait_rule smallint NOT NULL,
    tenant    integer NOT NULL,
    id        uuid NOT NULL,
    delay_ms  bigint NOT NULL,
    name      text NOT NULL,
    parents   integer[] NOT NULL,
    children  integer[] NOT NULL,
    PRIMARY KEY (shard, id),
    CHECK (wait_rule BETWEEN 0 AND 4)
);

-- What happens to a workflow without a caller: its deadline, the rest of a large cancel or cascade, the
-- callback at its end. Not in `timers`, where dispatch would lease them as tasks.
CREATE TABLE duly.workflow_timers (
    shard    smallint NOT NULL,
    tenant   integer NOT NULL,
    fence    integer NOT NULL DEFAULT 0,
    node     integer NOT NULL DEFAULT 0,
    workflow uuid NOT NULL,
    due_at   timestamptz NOT NULL,
    kind     text NOT NULL,
    cursor   text,
    PRIMARY KEY (shard, workflow, kind, node),
    CHECK (kind IN ('deadline', 'cancel', 'cascade', 'callback'))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX workflow_timers_due ON duly.workflow_timers (due_at, shard);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['workflows', 'workflow_nodes', 'workflow_timers'] LOOP
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON duly.%I TO duly_engine, duly_tenant', name);
        EXECUTE format('GRANT SELECT ON duly.%I TO duly_purger', name);
        EXECUTE format('ALTER TABLE duly.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY every_row ON duly.%I TO CURRENT_USER, duly_engine, duly_purger '
                       'USING (true) WITH CHECK (true)', name);
        EXECUTE format('CREATE POLICY own_rows ON duly.%I TO duly_tenant '
                       'USING (tenant + 0 = duly.current_tenant()) '
                       'WITH CHECK (tenant + 0 = duly.current_tenant())', name);
    END LOOP;
END
$$;

-- A node that waits has no `due_at`; it counts how its parents ended. All five are null in plain tasks,
-- and from the release on: `parents_pending` says who waits.
ALTER TABLE duly.timers
    ADD COLUMN wait_rule smallint,
    ADD COLUMN parents_pending integer,
    ADD COLUMN parents_completed integer,
    ADD COLUMN parents_failed integer,
    ADD COLUMN parents_skipped integer;

ALTER TABLE duly.attempts
    DROP CONSTRAINT attempts_outcome_check,
    DROP CONSTRAINT attempts_state_check,
    ADD CONSTRAINT attempts_outcome_check
        CHECK (outcome IN ('completed', 'failed', 'rejected', 'cancelled', 'released', 'snoozed',
                           'lease_lost', 'expired', 'skipped')),
    ADD CONSTRAINT attempts_state_check
        CHECK (state IN ('COMPLETED', 'FAILED', 'CANCELLED', 'SKIPPED'));

-- Fan-in -----------------------------------------------------------------------------------------

-- 1: the node is released; -1: its rule can no longer be met, and it is skipped; 0: it waits on. The
-- rules, in the order of domain/workflow.py: all_completed, none_failed, all_done, any_completed,
-- any_failed. A cancelled parent counts as failed.
CREATE FUNCTION duly.fan_in(rule smallint, pending bigint, completed bigint, failed bigint,
                            skipped bigint) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE rule
    WHEN 0 THEN CASE WHEN failed + skipped > 0 THEN -1 WHEN pending = 0 THEN 1 ELSE 0 END
    WHEN 1 THEN CASE WHEN failed > 0 THEN -1 WHEN pending = 0 THEN 1 ELSE 0 END
    WHEN 2 THEN CASE WHEN pending = 0 THEN 1 ELSE 0 END
    WHEN 3 THEN CASE WHEN completed > 0 THEN 1 WHEN pending = 0 THEN -1 ELSE 0 END
    WHEN 4 THEN CASE WHEN failed > 0 THEN 1 WHEN pending = 0 THEN -1 ELSE 0 END
END;

-- Why a workflow stops once so many more of its nodes have failed; the first reason stands.
CREATE FUNCTION duly.stop_reason_after(stop_reason text, on_failure text, failed bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN stop_reason IS NULL AND on_failure = 'stop' AND failed > 0 THEN 'failure'
            ELSE stop_reason END;

-- How a workflow ends whose last node has ended.
CREATE FUNCTION duly.workflow_end(stop_reason text, failed bigint, cancelled bigint, skipped bigint)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN failed + cancelled + skipped = 0 THEN 'COMPLETED'
            WHEN stop_reason = 'cancelled' THEN 'CANCELLED'
            WHEN stop_reason IS NOT NULL OR failed > 0 THEN 'FAILED'
            WHEN cancelled > 0 THEN 'CANCELLED'
            ELSE 'COMPLETED' END;

-- The lock that comes first, in the order of the addresses: what ends, retries or cancels nodes of a
-- workflow does so alone. Locks on the nodes' own rows could not do it: a finish takes parents and then
-- children, a cancel children and then parents, and two parents may share two children. True always;
-- the rows that are changed ask for it, so that they are not touched before.
CREATE FUNCTION duly.lock_workflows(ids uuid[]) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
BEGIN
    PERFORM
       FROM (SELECT DISTINCT duly.workflow_of(node.id) AS id FROM unnest(ids) AS node(id)) AS named
       JOIN duly.workflows
         ON workflows.shard = duly.shard_of(named.id) AND workflows.id = named.id
      ORDER BY workflows.shard, workflows.id
        FOR NO KEY UPDATE OF workflows;
    RETURN true;
END
$$;

-- What follows the end of nodes, in their transaction and under the lock of their workflows: each is
-- counted, its children count it, and those whose rule is met become due. One whose rule can no longer
-- be met ends as SKIPPED, which is the end of a node as well. A function, because each of its statements
-- sees what committed before it: in one statement, the last two parents of a child would each take the
-- other for live and leave it waiting for ever. What is counted is what was deleted, summed for each
-- child: an UPDATE with FROM applies one of several matches. Where a workflow was stopped, nothing is
-- released. Answers the timers of the released; a row with a workflow's own id, and nothing else, says
-- that `workflow_timers` has something to do for it at once.
CREATE FUNCTION duly.release_children(ended_ids uuid[], ended_states text[])
RETURNS TABLE (id uuid, tenant integer, shard smallint, queue smallint, fence integer,
               due_at timestamptz, priority smallint, type text, concurrency_key text,
               concurrency_limit integer, host text)
LANGUAGE plpgsql STRICT SET search_path = pg_catalog
AS $$
#variable_conflict use_column
DECLARE
    -- A level of a cascade is taken whole; after so many skips the next one is left to a timer.
    skipped_max CONSTANT integer := 1000;
    skipped_count integer := 0;
    wave uuid[] := ended_ids;
    wave_states text[] := ended_states;
    active uuid[];
    stopped uuid[];
    ended_workflows uuid[];
    released duly.timers[];
    doomed uuid[];
BEGIN
    LOOP
        WITH counts AS (
            SELECT duly.workflow_of(node.id) AS workflow, count(*) AS ended,
                   count(*) FILTER (WHERE node.state = 'COMPLETED') AS completed,
                   count(*) FILTER (WHERE node.state = 'FAILED') AS failed,
                   count(*) FILTER (WHERE node.state = 'SKIPPED') AS skipped,
                   count(*) FILTER (WHERE node.state = 'CANCELLED') AS cancelled
              FROM unnest(wave, wave_states) AS node(id, state)
             GROUP BY 1
        ), counted AS (
            UPDATE duly.workflows
               SET live = workflows.live - counts.ended,
                   completed = workflows.completed + counts.completed,
                   failed = workflows.failed + counts.failed,
                   skipped = workflows.skipped + counts.skipped,
                   cancelled = workflows.cancelled + counts.cancelled,
                   stop_reason = duly.stop_reason_after(workflows.stop_reason, workflows.on_failure,
                                                        counts.failed),
                   ended_at = CASE WHEN workflows.live = counts.ended THEN duly.now() END,
                   state = CASE WHEN workflows.live = counts.ended THEN duly.workflow_end(
                       duly.stop_reason_after(workflows.stop_reason, workflows.on_failure,
                                              counts.failed),
                       workflows.failed + counts.failed, workflows.cancelled + counts.cancelled,
                       workflows.skipped + counts.skipped) END
              FROM counts
             WHERE workflows.shard = duly.shard_of(counts.workflow)
               AND workflows.id = counts.workflow
         RETURNING workflows.id, workflows.live, workflows.stop_reason, counts.failed
        )
        SELECT array_agg(counted.id) FILTER (WHERE live > 0 AND stop_reason IS NULL),
               array_agg(counted.id) FILTER (WHERE live > 0 AND stop_reason = 'failure' AND failed > 0),
               array_agg(counted.id) FILTER (WHERE live = 0)
          INTO active, stopped, ended_workflows
          FROM counted;

        IF stopped IS NOT NULL THEN
            RETURN QUERY
            INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
            SELECT workflows.shard, workflows.tenant, workflows.id, 'cancel', duly.now()
              FROM unnest(stopped) AS asked(id)
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(asked.id) AND workflows.id = asked.id
                ON CONFLICT DO NOTHING
         RETURNING workflow, tenant, shard, NULL::smallint, NULL::integer, due_at, NULL::smallint,
                   NULL, NULL, NULL::integer, NULL;
        END IF;
        IF ended_workflows IS NOT NULL THEN
            DELETE FROM duly.workflow_timers
             USING unnest(ended_workflows) AS asked(id)
             WHERE workflow_timers.shard = duly.shard_of(asked.id)
               AND workflow_timers.workflow = asked.id;
            RETURN QUERY
            INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
            SELECT workflows.shard, workflows.tenant, workflows.id, 'callback', duly.now()
              FROM unnest(ended_workflows) AS asked(id)
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(asked.id) AND workflows.id = asked.id
             WHERE workflows.callback IS NOT NULL
         RETURNING workflow, tenant, shard, NULL::smallint, NULL::integer, due_at, NULL::smallint,
                   NULL, NULL, NULL::integer, NULL;
        END IF;
        EXIT WHEN active IS NULL;

        -- Only nodes that wait: a release comes once, and parents that end later change nothing.
        WITH child AS (
            SELECT parent.shard, duly.node_id(node.id, edge.number) AS id, count(*) AS ended,
                   count(*) FILTER (WHERE node.state = 'COMPLETED') AS completed,
                   count(*) FILTER (WHERE node.state IN ('FAILED', 'CANCELLED')) AS failed,
                   count(*) FILTER (WHERE node.state = 'SKIPPED') AS skipped
              FROM unnest(wave, wave_states) AS node(id, state)
              JOIN duly.workflow_nodes AS parent
                ON parent.shard = duly.shard_of(node.id) AND parent.id = node.id
             CROSS JOIN LATERAL unnest(parent.children) AS edge(number)
             WHERE duly.workflow_of(node.id) = ANY (active)
             GROUP BY 1, 2
        ), judged AS (
            SELECT timers.shard, timers.id, rule.delay_ms,
                   timers.parents_pending - child.ended AS pending,
                   timers.parents_completed + child.completed AS completed,
                   timers.parents_failed + child.failed AS failed,
                   timers.parents_skipped + child.skipped AS skipped,
                   duly.fan_in(timers.wait_rule, timers.parents_pending - child.ended,
                               timers.parents_completed + child.completed,
                               timers.parents_failed + child.failed,
                               timers.parents_skipped + child.skipped) AS verdict
              FROM child
              JOIN duly.timers ON timers.shard = child.shard AND timers.id = child.id
              JOIN duly.workflow_nodes AS rule ON rule.shard = child.shard AND rule.id = child.id
             WHERE timers.parents_pending IS NOT NULL
        ), counted AS (
            UPDATE duly.timers
               SET parents_pending = CASE WHEN judged.verdict <> 1 THEN judged.pending END,
                   parents_completed = CASE WHEN judged.verdict <> 1 THEN judged.completed END,
                   parents_failed = CASE WHEN judged.verdict <> 1 THEN judged.failed END,
                   parents_skipped = CASE WHEN judged.verdict <> 1 THEN judged.skipped END,
                   wait_rule = CASE WHEN judged.verdict <> 1 THEN timers.wait_rule END,
                   due_at = CASE WHEN judged.verdict = 1 THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END,
                   run_at = CASE WHEN judged.verdict = 1 THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END
              FROM judged
             WHERE timers.shard = judged.shard AND timers.id = judged.id
               AND timers.parents_pending IS NOT NULL
         RETURNING timers AS timer, judged.verdict
        )
        SELECT array_agg(timer) FILTER (WHERE verdict = 1),
               array_agg((timer).id) FILTER (WHERE verdict = -1)
          INTO released, doomed
          FROM counted;

        RETURN QUERY
        SELECT free.id, free.tenant, free.shard, free.queue, free.fence, free.due_at, free.priority,
               free.type, free.concurrency_key, free.concurrency_limit, free.host
          FROM unnest(released) AS free;
        EXIT WHEN doomed IS NULL;

        WITH ended AS (
            DELETE FROM duly.timers
             USING unnest(doomed) AS asked(id)
             WHERE timers.shard = duly.shard_of(asked.id)
               AND timers.id = asked.id
               AND timers.parents_pending IS NOT NULL
         RETURNING timers.shard, timers.id, timers.tenant, timers.fence + 1 AS fence, 0 AS charged,
                   NULL::uuid AS holder, NULL::timestamptz AS started_at, timers.run_at,
                   'skipped' AS outcome, 'SKIPPED' AS state, NULL AS reason, NULL AS error,
                   NULL AS result
        ),
-- include: finish.attempt_record
        SELECT array_agg(ended.id), array_agg(ended.state) INTO wave, wave_states FROM ended;

        skipped_count := skipped_count + cardinality(wave);
        IF skipped_count > skipped_max THEN
            RETURN QUERY
            INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, node, due_at, cursor)
            SELECT workflows.shard, workflows.tenant, workflows.id, 'cascade',
                   min(duly.node_number(skipped.id)), duly.now(),
                   string_agg(duly.node_number(skipped.id)::text, ' ')
              FROM unnest(wave) AS skipped(id)
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(skipped.id)
               AND workflows.id = duly.workflow_of(skipped.id)
             GROUP BY workflows.shard, workflows.tenant, workflows.id
         RETURNING workflow, tenant, shard, NULL::smallint, NULL::integer, due_at, NULL::smallint,
                   NULL, NULL, NULL::integer, NULL;
            EXIT;
        END IF;
    END LOOP;
END
$$;

-- Retention --------------------------------------------------------------------------------------

CREATE OR REPLACE FUNCTION duly.drop_partition(month date, finished_before timestamptz) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '500ms'
AS $$
DECLARE
    suffix text := to_char(month, 'YYYY_MM');
    lower_bound uuid := duly.id_bound(date_trunc('month', month::timestamp) AT TIME ZONE 'UTC');
    upper_bound uuid := duly.id_bound(
        (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC');
    newest timestamptz;
BEGIN
    IF upper_bound > duly.id_bound(duly.now()) THEN
        RETURN 'current';
    END IF;
    EXECUTE format('LOCK TABLE duly.%I, duly.%I IN SHARE MODE',
                   'tasks_' || suffix, 'attempts_' || suffix);
    IF EXISTS (SELECT FROM generate_series(0, 1023) AS probe(shard)
                WHERE EXISTS (SELECT FROM duly.timers
                               WHERE timers.shard = probe.shard
                                 AND timers.id >= lower_bound AND timers.id < upper_bound)) THEN
        RETURN 'live';
    END IF;
    -- Nodes and their results are kept as long as their workflow.
    IF EXISTS (SELECT FROM generate_series(0, 1023) AS probe(shard)
                WHERE EXISTS (SELECT FROM duly.workflows
                               WHERE workflows.shard = probe.shard
                                 AND workflows.id >= lower_bound AND workflows.id < upper_bound)) THEN
        RETURN 'workflows';
    END IF;
    EXECUTE format('SELECT max(ended_at) FROM duly.%I', 'attempts_' || suffix) INTO newest;
    IF newest >= finished_before THEN
        RETURN 'recent';
    END IF;
    EXECUTE format('DROP TABLE duly.%I', 'tasks_' || suffix);
    EXECUTE format('DROP TABLE duly.%I', 'attempts_' || suffix);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION duly.delete_finished(month date, finished_before timestamptz, after_shard smallint,
                                     after_id uuid, examine_max integer)
RETURNS TABLE (examined integer, deleted integer, last_shard smallint, last_id uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '500ms'
AS $$
DECLARE
    suffix text := to_char(month, 'YYYY_MM');
    upper_bound uuid := duly.id_bound(
        (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC');
BEGIN
    -- Old months only ever empty; the current one is where new tasks go.
    IF upper_bound > duly.id_bound(duly.now()) OR to_regclass('duly.tasks_' || suffix) IS NULL
       OR to_regclass('duly.attempts_' || suffix) IS NULL THEN
        RETURN QUERY SELECT 0, 0, after_shard, after_id;
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format($statement$
        WITH candidates AS MATERIALIZED (
            SELECT tasks.shard, tasks.id
              FROM duly.%1$I AS tasks
             WHERE (tasks.shard, tasks.id) > ($1, $2)
             ORDER BY tasks.shard, tasks.id
             LIMIT least($3, 10000)
        ), finished AS MATERIALIZED (
            SELECT candidates.shard, candidates.id
              FROM candidates
             WHERE EXISTS (SELECT FROM duly.%2$I AS attempts
                            WHERE attempts.shard = candidates.shard
                              AND attempts.id = candidates.id
                              AND attempts.state IS NOT NULL
                              AND attempts.ended_at < $4)
               AND NOT EXISTS (SELECT FROM duly.timers
                                WHERE timers.shard = candidates.shard
                                  AND timers.id = candidates.id)
               AND (NOT duly.is_node(candidates.id)
                    OR NOT EXISTS (SELECT FROM duly.workflows
                                    WHERE workflows.shard = candidates.shard
                                      AND workflows.id = duly.workflow_of(candidates.id)))
        ), forgotten AS (
            DELETE FROM duly.%2$I AS attempts
             USING finished
             WHERE attempts.shard = finished.shard AND attempts.id = finished.id
        ), gone AS (
            DELETE FROM duly.%1$I AS tasks
             USING finished
             WHERE tasks.shard = finished.shard AND tasks.id = finished.id
            RETURNING 1
        ), final AS (
            SELECT candidates.shard, candidates.id
              FROM candidates
             ORDER BY candidates.shard DESC, candidates.id DESC
             LIMIT 1
        )
        SELECT (SELECT count(*) FROM candidates)::integer,
               (SELECT count(*) FROM gone)::integer,
               coalesce((SELECT final.shard FROM final), $1),
               coalesce((SELECT final.id FROM final), $2)
        $statement$, 'tasks_' || suffix, 'attempts_' || suffix)
        USING after_shard, after_id, examine_max, finished_before;
END
$$;

-- name: reverse
-- Drops workflows with their graphs; their tasks stay, those that wait as cancelled ones would not.
DELETE FROM duly.timers WHERE parents_pending IS NOT NULL;
DELETE FROM duly.attempts WHERE state = 'SKIPPED';
CREATE OR REPLACE FUNCTION duly.drop_partition(month date, finished_before timestamptz) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '500ms'
AS $$
DECLARE
    suffix text := to_char(month, 'YYYY_MM');
    lower_bound uuid := duly.id_bound(date_trunc('month', month::timestamp) AT TIME ZONE 'UTC');
    upper_bound uuid := duly.id_bound(
        (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC');
    newest timestamptz;
BEGIN
    IF upper_bound > duly.id_bound(duly.now()) THEN
        RETURN 'current';
    END IF;
    EXECUTE format('LOCK TABLE duly.%I, duly.%I IN SHARE MODE',
                   'tasks_' || suffix, 'attempts_' || suffix);
    IF EXISTS (SELECT FROM generate_series(0, 1023) AS probe(shard)
                WHERE EXISTS (SELECT FROM duly.timers
                               WHERE timers.shard = probe.shard
                                 AND timers.id >= lower_bound AND timers.id < upper_bound)) THEN
        RETURN 'live';
    END IF;
    EXECUTE format('SELECT max(ended_at) FROM duly.%I', 'attempts_' || suffix) INTO newest;
    IF newest >= finished_before THEN
        RETURN 'recent';
    END IF;
    EXECUTE format('DROP TABLE duly.%I', 'tasks_' || suffix);
    EXECUTE format('DROP TABLE duly.%I', 'attempts_' || suffix);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION duly.delete_finished(month date, finished_before timestamptz, after_shard smallint,
                                     after_id uuid, examine_max integer)
RETURNS TABLE (examined integer, deleted integer, last_shard smallint, last_id uuid)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog SET lock_timeout = '500ms'
AS $$
DECLARE
    suffix text := to_char(month, 'YYYY_MM');
    upper_bound uuid := duly.id_bound(
        (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC');
BEGIN
    -- Old months only ever empty; the current one is where new tasks go.
    IF upper_bound > duly.id_bound(duly.now()) OR to_regclass('duly.tasks_' || suffix) IS NULL
       OR to_regclass('duly.attempts_' || suffix) IS NULL THEN
        RETURN QUERY SELECT 0, 0, after_shard, after_id;
        RETURN;
    END IF;
    RETURN QUERY EXECUTE format($statement$
        WITH candidates AS MATERIALIZED (
            SELECT tasks.shard, tasks.id
              FROM duly.%1$I AS tasks
             WHERE (tasks.shard, tasks.id) > ($1, $2)
             ORDER BY tasks.shard, tasks.id
             LIMIT least($3, 10000)
        ), finished AS MATERIALIZED (
            SELECT candidates.shard, candidates.id
              FROM candidates
             WHERE EXISTS (SELECT FROM duly.%2$I AS attempts
                            WHERE attempts.shard = candidates.shard
                              AND attempts.id = candidates.id
                              AND attempts.state IS NOT NULL
                              AND attempts.ended_at < $4)
               AND NOT EXISTS (SELECT FROM duly.timers
                                WHERE timers.shard = candidates.shard
                                  AND timers.id = candidates.id)
        ), forgotten AS (
            DELETE FROM duly.%2$I AS attempts
             USING finished
             WHERE attempts.shard = finished.shard AND attempts.id = finished.id
        ), gone AS (
            DELETE FROM duly.%1$I AS tasks
             USING finished
             WHERE tasks.shard = finished.shard AND tasks.id = finished.id
            RETURNING 1
        ), final AS (
            SELECT candidates.shard, candidates.id
              FROM candidates
             ORDER BY candidates.shard DESC, candidates.id DESC
             LIMIT 1
        )
        SELECT (SELECT count(*) FROM candidates)::integer,
               (SELECT count(*) FROM gone)::integer,
               coalesce((SELECT final.shard FROM final), $1),
               coalesce((SELECT final.id FROM final), $2)
        $statement$, 'tasks_' || suffix, 'attempts_' || suffix)
        USING after_shard, after_id, examine_max, finished_before;
END
$$;

CREATE OR REPLACE FUNCTION duly.make_task_id(placed timestamptz, shard smallint, random uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (left(replace(duly.id_bound(placed)::text, '-', ''), 12) || '7'
        || lpad(to_hex((shard::integer << 2) | (get_byte(uuid_send(random), 0) & 3)), 3, '0')
        || right(replace(random::text, '-', ''), 16))::uuid;
DROP FUNCTION duly.release_children, duly.lock_workflows, duly.workflow_end, duly.stop_reason_after,
    duly.fan_in, duly.node_id, duly.node_number, duly.workflow_of, duly.is_node;
ALTER TABLE duly.attempts
    DROP CONSTRAINT attempts_outcome_check,
    DROP CONSTRAINT attempts_state_check,
    ADD CONSTRAINT attempts_outcome_check
        CHECK (outcome IN ('completed', 'failed', 'rejected', 'cancelled', 'released', 'snoozed',
                           'lease_lost', 'expired')),
    ADD CONSTRAINT attempts_state_check
        CHECK (state IN ('COMPLETED', 'FAILED', 'CANCELLED'));
ALTER TABLE duly.timers
    DROP COLUMN wait_rule,
    DROP COLUMN parents_pending,
    DROP COLUMN parents_completed,
    DROP COLUMN parents_failed,
    DROP COLUMN parents_skipped;
DROP TABLE duly.workflow_timers, duly.workflow_nodes, duly.workflows;
