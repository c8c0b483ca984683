-- name: forward
-- Workflows, part two: nodes that are no tasks (maps, waits, workflows), and nodes that come later.

-- What a node is besides its task. `kind`: 0 task, 1 map, 2 wait, 3 workflow. `spec`: what that kind, and
-- `if`, need (JSON). `is_step`: it does not become due at its release; a step decides what then happens.
-- `map_number`, `map_index`: of which map it is an item, and which one. `source`: the node of an earlier
-- workflow whose run stands for this one. `compensates`: the node that this one undoes.
ALTER TABLE duly.workflow_nodes
    ADD COLUMN kind smallint NOT NULL DEFAULT 0 CHECK (kind BETWEEN 0 AND 3),
    ADD COLUMN is_step boolean NOT NULL DEFAULT false,
    ADD COLUMN map_number integer,
    ADD COLUMN map_index integer,
    ADD COLUMN compensates integer,
    ADD COLUMN source uuid,
    ADD COLUMN spec text,
    ADD CHECK ((map_number IS NULL) = (map_index IS NULL)),
    ADD CHECK (kind = 0 OR is_step);
CREATE UNIQUE INDEX workflow_nodes_of_map
    ON duly.workflow_nodes (shard, duly.workflow_of(id), map_number, map_index)
 WHERE map_number IS NOT NULL;
CREATE INDEX workflow_nodes_of_signal
    ON duly.workflow_nodes (shard, duly.workflow_of(id), (spec::jsonb #>> '{wait,signal}')) WHERE kind = 2;
CREATE UNIQUE INDEX workflow_nodes_compensating
    ON duly.workflow_nodes (shard, duly.workflow_of(id), compensates) WHERE compensates IS NOT NULL;

-- `root`: the first of a chain of resumes, which execution keys name. `parent_node`: the node of another
-- workflow that stands for this one, `depth` of them above each other. `next_workflow`: what waits for the
-- end of this one. `compensating_at`: since then, what completed is being undone. `generated`: of `nodes`,
-- those that duly made itself: items of maps, and what undoes. They are numbered from 10,001 on, the nodes
-- of the graph from 1, each without gaps, so that a graph is read without its items. `items_failed`,
-- `items_cancelled`: of those that failed or were cancelled, the items, which their map judges.
-- `compensated`, `compensations_failed`: of what undoes, how many completed, and failed or were cancelled.
-- `resumed_at`: when another one last began to reuse what finished in this one, which is kept for that.
ALTER TABLE duly.workflows
    ADD COLUMN generated integer NOT NULL DEFAULT 0,
    ADD COLUMN items_failed integer NOT NULL DEFAULT 0,
    ADD COLUMN items_cancelled integer NOT NULL DEFAULT 0,
    ADD COLUMN compensated integer NOT NULL DEFAULT 0,
    ADD COLUMN compensations_failed integer NOT NULL DEFAULT 0,
    ADD COLUMN depth smallint NOT NULL DEFAULT 0,
    ADD COLUMN type_version integer,
    ADD COLUMN paused_at timestamptz,
    ADD COLUMN compensating_at timestamptz,
    ADD COLUMN resumed_from uuid,
    ADD COLUMN resumed_at timestamptz,
    ADD COLUMN root uuid,
    ADD COLUMN parent_node uuid,
    ADD COLUMN next_workflow uuid,
    ADD COLUMN paused_by text,
    ADD COLUMN type text,
    DROP CONSTRAINT workflows_on_failure_check,
    DROP CONSTRAINT workflows_check1,
    ADD CONSTRAINT workflows_on_failure_check
        CHECK (on_failure IN ('finish_branches', 'stop', 'compensate')),
    ADD CONSTRAINT workflows_check1
        CHECK ((ended_at IS NULL OR live = 0)
               AND (live > 0 OR ended_at IS NOT NULL OR compensating_at IS NOT NULL));
CREATE INDEX workflows_within ON duly.workflows (shard, parent_node) WHERE parent_node IS NOT NULL;
CREATE INDEX workflows_of_root ON duly.workflows (shard, root) WHERE root IS NOT NULL;
-- Of all that were resumed from one, one lives at a time: their nodes share execution keys.
CREATE UNIQUE INDEX workflows_resumed ON duly.workflows (shard, root)
 WHERE root IS NOT NULL AND ended_at IS NULL;

-- `held_due_at`: when it was due before its workflow was paused. `items_mark`: of an open map that has
-- more items to come; with so few open ones it makes more. `items_failed_max`: with more failed items than
-- this, it fails.
ALTER TABLE duly.timers
    ADD COLUMN items_mark integer,
    ADD COLUMN items_failed_max integer,
    ADD COLUMN held_due_at timestamptz;

ALTER TABLE duly.workflow_timers
    ADD COLUMN tries smallint NOT NULL DEFAULT 0,
    DROP CONSTRAINT workflow_timers_kind_check,
    ADD CONSTRAINT workflow_timers_kind_check
        CHECK (kind IN ('deadline', 'cancel', 'cascade', 'callback', 'step', 'map', 'wait',
                        'compensate', 'child', 'stop', 'resume', 'next'));

-- A map fails with more failed items than it tolerates, or where its source has no items, or too many; a
-- node that stands for a workflow where that failed, or could not be started.
ALTER TABLE duly.dead_letters
    DROP CONSTRAINT dead_letters_reason_check,
    ADD CONSTRAINT dead_letters_reason_check
        CHECK (reason IN ('exhausted', 'rejected', 'non_retryable', 'expired', 'poison', 'items_failed',
                          'invalid_items', 'workflow_failed'));

-- Of each map that was opened: how far it is. `total`: how many items it has, once that is known. `handed`:
-- items that its running parent has handed over. `reason`, `detail`: why it makes no more and will fail.
-- `earlier`: of a resumed workflow, the map of an earlier one whose completed items it reuses.
CREATE TABLE duly.workflow_maps (
    shard    smallint NOT NULL,
    tenant   integer NOT NULL,
    node     integer NOT NULL,
    made     integer NOT NULL DEFAULT 0,
    handed   integer NOT NULL DEFAULT 0,
    total    integer,
    workflow uuid NOT NULL,
    earlier  uuid,
    reason   text,
    detail   text,
    PRIMARY KEY (shard, workflow, node),
    CHECK (made <= coalesce(total, handed))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- Items that were handed over and have no task yet: a JSON list, whose first has that place in the map.
CREATE TABLE duly.workflow_map_pages (
    shard       smallint NOT NULL,
    tenant      integer NOT NULL,
    node        integer NOT NULL,
    first_index integer NOT NULL,
    items       integer NOT NULL CHECK (items > 0),
    workflow    uuid NOT NULL,
    content     text NOT NULL,
    PRIMARY KEY (shard, workflow, node, first_index)
);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['workflow_maps', 'workflow_map_pages'] LOOP
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

-- What was told to a workflow from outside, in the order in which it came; kept until a node wants it.
CREATE TABLE duly.workflow_signals (
    shard           smallint NOT NULL,
    tenant          integer NOT NULL,
    number          integer NOT NULL,
    consumed_by     integer,
    workflow        uuid NOT NULL,
    received_at     timestamptz NOT NULL,
    consumed_at     timestamptz,
    name            text NOT NULL,
    sender          text NOT NULL,
    access          text NOT NULL,
    payload         text,
    idempotency_key text,
    request_hash    bytea,
    PRIMARY KEY (shard, workflow, number),
    CHECK ((consumed_by IS NULL) = (consumed_at IS NULL))
);
CREATE UNIQUE INDEX workflow_signals_keyed ON duly.workflow_signals (shard, workflow, idempotency_key)
 WHERE idempotency_key IS NOT NULL;
CREATE INDEX workflow_signals_kept ON duly.workflow_signals (shard, workflow, name, number)
 WHERE consumed_by IS NULL;
GRANT SELECT, INSERT, UPDATE, DELETE ON duly.workflow_signals TO duly_engine, duly_tenant;
GRANT SELECT, UPDATE (payload, idempotency_key) ON duly.workflow_signals TO duly_purger;
ALTER TABLE duly.workflow_signals ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY every_row ON duly.workflow_signals TO CURRENT_USER, duly_engine, duly_purger
    USING (true) WITH CHECK (true);
CREATE POLICY own_rows ON duly.workflow_signals TO duly_tenant
    USING (tenant + 0 = duly.current_tenant()) WITH CHECK (tenant + 0 = duly.current_tenant());

-- Why a workflow stops once so many more of its nodes have failed; the first reason stands.
CREATE OR REPLACE FUNCTION duly.stop_reason_after(stop_reason text, on_failure text, failed bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN stop_reason IS NULL AND on_failure IN ('stop', 'compensate') AND failed > 0
            THEN 'failure' ELSE stop_reason END;

-- What follows the end of workflows, in its transaction: nothing is left to do for them but to tell of it:
-- a callback, the node of another workflow that stands for it, a workflow that waits for its end. Answers
-- rows like release_children.
CREATE FUNCTION duly.workflow_ended(ended_ids uuid[])
RETURNS TABLE (id uuid, tenant integer, shard smallint, queue smallint, fence integer,
               due_at timestamptz, priority smallint, type text, concurrency_key text,
               concurrency_limit integer, host text)
LANGUAGE plpgsql STRICT SET search_path = pg_catalog
AS $$
#variable_conflict use_column
BEGIN
    DELETE FROM duly.workflow_timers
     USING unnest(ended_ids) AS asked(id)
     WHERE workflow_timers.shard = duly.shard_of(asked.id)
       AND workflow_timers.workflow = asked.id;
    -- A look at a workflow that has not ended yet may be under way: it is done again.
    RETURN QUERY
    INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at)
    SELECT told.shard, workflows.tenant, told.workflow, told.kind, told.node, duly.now()
      FROM unnest(ended_ids) AS asked(id)
      JOIN duly.workflows
        ON workflows.shard = duly.shard_of(asked.id) AND workflows.id = asked.id
     CROSS JOIN LATERAL (
           SELECT workflows.shard, workflows.id AS workflow, 'callback' AS kind, 0 AS node
            WHERE workflows.callback IS NOT NULL
            UNION ALL
           SELECT workflows.shard, workflows.id, 'next', 0 WHERE workflows.next_workflow IS NOT NULL
            UNION ALL
           SELECT duly.shard_of(workflows.parent_node), duly.workflow_of(workflows.parent_node),
                  'child', duly.node_number(workflows.parent_node)
            WHERE workflows.parent_node IS NOT NULL) AS told
        ON CONFLICT (shard, workflow, kind, node) DO UPDATE
       SET due_at = least(held.due_at, excluded.due_at), fence = held.fence + 1
 RETURNING held.workflow, held.tenant, held.shard, NULL::smallint, NULL::integer, held.due_at,
           NULL::smallint, NULL, NULL, NULL::integer, NULL;
END
$$;

-- Of nodes that are to be cancelled under the lock of their workflows, those that stand for a workflow: that
-- one is asked to stop, unless it has ended, and they end as it does. A function, because it must see what
-- began while its caller waited for the lock.
CREATE FUNCTION duly.stop_workflows_of(owner integer, nodes uuid[])
RETURNS TABLE (node uuid, workflow uuid, shard smallint)
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH inside AS (
        SELECT workflows.parent_node, workflows.id, workflows.shard, workflows.tenant, workflows.ended_at
          FROM unnest(nodes) AS asked(id)
          JOIN duly.timers
            ON timers.shard = duly.shard_of(asked.id) AND timers.id = asked.id
          JOIN duly.workflows
            ON workflows.shard = duly.shard_of(asked.id)
           AND workflows.parent_node = asked.id
           AND workflows.tenant + 0 = owner
    ), armed AS (
        INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
        SELECT inside.shard, inside.tenant, inside.id, 'stop', duly.now()
          FROM inside
         WHERE inside.ended_at IS NULL
            ON CONFLICT DO NOTHING
    )
    SELECT inside.parent_node, inside.id, inside.shard FROM inside;
END
$$;

-- What follows the end of nodes, as before; what came to it: a node that is a `step` gets a timer of that
-- kind instead of becoming due, one of a paused workflow is held, the end of an item counts for its map and
-- may call for more items or fail the map, a map hears when what hands items over to it has ended, and when
-- it was cancelled by itself. A workflow that is undone does not end with its last node: a timer goes on
-- with what undoes the others. With `first_child`, the nodes ended before, and only children from that
-- number on are told.
DROP FUNCTION duly.release_children;
CREATE FUNCTION duly.release_children(ended_ids uuid[], ended_states text[],
                                      first_child integer DEFAULT 0)
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
    paused uuid[];
    stopped uuid[];
    undone uuid[];
    ended_workflows uuid[];
    released duly.timers[];
    stepping duly.timers[];
    sources_ended uuid[];
    doomed uuid[];
BEGIN
    LOOP
        IF first_child > 0 THEN
            -- These were counted when they ended: only children that came after that are told.
            SELECT array_agg(named.id), array_agg(named.id) FILTER (WHERE workflows.paused_at IS NOT NULL)
              INTO active, paused
              FROM (SELECT DISTINCT duly.workflow_of(node.id) AS id FROM unnest(wave) AS node(id)) AS named
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(named.id) AND workflows.id = named.id;
        ELSE
            WITH counts AS (
                SELECT duly.workflow_of(node.id) AS workflow, count(*) AS ended,
                       count(*) FILTER (WHERE node.state = 'COMPLETED') AS completed,
                       count(*) FILTER (WHERE node.state = 'FAILED') AS failed,
                       count(*) FILTER (WHERE node.state = 'SKIPPED') AS skipped,
                       count(*) FILTER (WHERE node.state = 'CANCELLED') AS cancelled,
                       count(item.map_number) FILTER (WHERE node.state = 'FAILED') AS items_failed,
                       count(item.map_number) FILTER (WHERE node.state = 'CANCELLED') AS items_cancelled,
                       count(*) FILTER (WHERE node.state = 'FAILED' AND item.map_number IS NULL)
                           AS nodes_failed
                  FROM unnest(wave, wave_states) AS node(id, state)
                  LEFT JOIN LATERAL (
                       SELECT made.map_number FROM duly.workflow_nodes AS made
                        WHERE node.state IN ('FAILED', 'CANCELLED')
                          AND duly.node_number(node.id) > 10000
                          AND made.shard = duly.shard_of(node.id) AND made.id = node.id) AS item ON true
                 GROUP BY 1
            ), counted AS (
                UPDATE duly.workflows
                   SET live = workflows.live - counts.ended,
                       completed = workflows.completed + counts.completed,
                       failed = workflows.failed + counts.failed,
                       skipped = workflows.skipped + counts.skipped,
                       cancelled = workflows.cancelled + counts.cancelled,
                       items_failed = workflows.items_failed + counts.items_failed,
                       items_cancelled = workflows.items_cancelled + counts.items_cancelled,
                       stop_reason = duly.stop_reason_after(workflows.stop_reason, workflows.on_failure,
                                                            counts.nodes_failed),
                       compensated = workflows.compensated
                           + CASE WHEN workflows.compensating_at IS NULL THEN 0
                                  ELSE counts.completed END,
                       compensations_failed = workflows.compensations_failed
                           + CASE WHEN workflows.compensating_at IS NULL THEN 0
                                  ELSE counts.failed + counts.cancelled END,
                       (compensating_at, ended_at, state) = (
                           SELECT CASE WHEN is_undone
                                       THEN coalesce(workflows.compensating_at, duly.now())
                                       ELSE workflows.compensating_at END,
                                  CASE WHEN is_over AND NOT is_undone THEN duly.now() END,
                                  CASE WHEN is_over AND NOT is_undone THEN ends_as END
                             FROM (SELECT *, is_over AND workflows.on_failure = 'compensate'
                                             AND ends_as = 'FAILED' AS is_undone
                                     FROM (SELECT workflows.live = counts.ended AS is_over,
                                                  duly.workflow_end(
                               duly.stop_reason_after(workflows.stop_reason, workflows.on_failure,
                                                      counts.nodes_failed),
                               workflows.failed - workflows.items_failed + counts.nodes_failed,
                               workflows.cancelled - workflows.items_cancelled
                                   + counts.cancelled - counts.items_cancelled,
                               workflows.skipped + counts.skipped) AS ends_as) AS end_now) AS judged)
                  FROM counts
                 WHERE workflows.shard = duly.shard_of(counts.workflow)
                   AND workflows.id = counts.workflow
             RETURNING workflows.id, workflows.live, workflows.stop_reason, workflows.paused_at,
                       workflows.ended_at, workflows.compensating_at, counts.nodes_failed
            )
            SELECT array_agg(counted.id) FILTER (
                       WHERE live > 0 AND (stop_reason IS NULL OR compensating_at IS NOT NULL
                                                                  AND stop_reason <> 'cancelled')),
                   array_agg(counted.id) FILTER (WHERE paused_at IS NOT NULL),
                   array_agg(counted.id) FILTER (
                       WHERE live > 0 AND stop_reason = 'failure' AND nodes_failed > 0
                         AND compensating_at IS NULL),
                   array_agg(counted.id) FILTER (WHERE live = 0 AND ended_at IS NULL),
                   array_agg(counted.id) FILTER (WHERE ended_at IS NOT NULL)
              INTO active, paused, stopped, undone, ended_workflows
              FROM counted;
        END IF;

        IF stopped IS NOT NULL OR undone IS NOT NULL THEN
            DELETE FROM duly.workflow_timers
             USING unnest(undone) AS asked(id)
             WHERE workflow_timers.shard = duly.shard_of(asked.id)
               AND workflow_timers.workflow = asked.id;
            RETURN QUERY
            INSERT INTO duly.workflow_timers (shard, tenant, workflow, kind, due_at)
            SELECT workflows.shard, workflows.tenant, workflows.id, asked.kind, duly.now()
              FROM (SELECT unnest(stopped) AS id, 'cancel' AS kind
                     UNION ALL
                    SELECT unnest(undone), 'compensate') AS asked
              JOIN duly.workflows
                ON workflows.shard = duly.shard_of(asked.id) AND workflows.id = asked.id
                ON CONFLICT DO NOTHING
         RETURNING workflow, tenant, shard, NULL::smallint, NULL::integer, due_at, NULL::smallint,
                   NULL, NULL, NULL::integer, NULL;
        END IF;
        IF ended_workflows IS NOT NULL THEN
            RETURN QUERY SELECT * FROM duly.workflow_ended(ended_workflows);
        END IF;
        EXIT WHEN active IS NULL;

        IF 'CANCELLED' = ANY (wave_states) THEN
            RETURN QUERY
            INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at)
            SELECT maps.shard, maps.tenant, maps.workflow, 'map', maps.node, duly.now()
              FROM unnest(wave, wave_states) AS ended(id, state)
              JOIN duly.workflow_maps AS maps
                ON maps.shard = duly.shard_of(ended.id)
               AND maps.workflow = duly.workflow_of(ended.id)
               AND maps.node = duly.node_number(ended.id)
             WHERE ended.state = 'CANCELLED'
               AND duly.node_number(ended.id) <= 10000
               AND duly.workflow_of(ended.id) = ANY (active)
                ON CONFLICT (shard, workflow, kind, node) DO UPDATE
               SET due_at = least(held.due_at, excluded.due_at), fence = held.fence + 1
         RETURNING held.workflow, held.tenant, held.shard, NULL::smallint, NULL::integer, held.due_at,
                   NULL::smallint, NULL, NULL, NULL::integer, NULL;
        END IF;

        -- Only nodes that wait: a release comes once, and parents that end later change nothing. Of an
        -- open map, the items are such parents, and a cancelled one counts as skipped, which no item is;
        -- the end of its other parents is only told.
        WITH child AS (
            SELECT parent.shard, duly.node_id(node.id, edge.number) AS id,
                   parent.map_number IS NOT NULL AS is_item, count(*) AS ended,
                   count(*) FILTER (WHERE node.state = 'COMPLETED') AS completed,
                   count(*) FILTER (WHERE node.state IN ('FAILED', 'CANCELLED')
                                      AND (parent.map_number IS NULL OR node.state = 'FAILED'))
                       AS failed,
                   count(*) FILTER (WHERE node.state = 'SKIPPED'
                                       OR parent.map_number IS NOT NULL AND node.state = 'CANCELLED')
                       AS skipped
              FROM unnest(wave, wave_states) AS node(id, state)
              JOIN duly.workflow_nodes AS parent
                ON parent.shard = duly.shard_of(node.id) AND parent.id = node.id
             CROSS JOIN LATERAL unnest(parent.children) AS edge(number)
             WHERE duly.workflow_of(node.id) = ANY (active)
               AND edge.number >= first_child
             GROUP BY 1, 2, 3
        ), judged AS (
            SELECT timers.shard, timers.id, rule.delay_ms, rule.is_step,
                   duly.workflow_of(child.id) = ANY (coalesce(paused, '{}')) AS is_paused,
                   child.is_item, timers.started_at IS NOT NULL AS is_open_map,
                   coalesce(timers.parents_failed + child.failed > timers.items_failed_max
                            OR timers.parents_pending > timers.items_mark
                               AND timers.parents_pending - child.ended <= timers.items_mark, false)
                       AS wants_items,
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
                   parents_completed = CASE WHEN judged.verdict <> 1 OR is_open_map THEN judged.completed END,
                   parents_failed = CASE WHEN judged.verdict <> 1 OR is_open_map THEN judged.failed END,
                   parents_skipped = CASE WHEN judged.verdict <> 1 OR is_open_map THEN judged.skipped END,
                   wait_rule = CASE WHEN judged.verdict <> 1 THEN timers.wait_rule END,
                   due_at = CASE WHEN judged.verdict = 1 AND NOT is_step AND NOT is_paused THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END,
                   held_due_at = CASE WHEN judged.verdict = 1 AND NOT is_step AND is_paused THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END,
                   run_at = CASE WHEN judged.verdict = 1 THEN
                       duly.now() + judged.delay_ms * interval '1 millisecond' END
              FROM judged
             WHERE timers.shard = judged.shard AND timers.id = judged.id
               AND (timers.started_at IS NOT NULL) = judged.is_item
               AND timers.parents_pending IS NOT NULL
         RETURNING timers AS timer, judged.verdict, judged.is_step, judged.is_paused,
                   judged.wants_items
        )
        SELECT array_agg(timer) FILTER (WHERE verdict = 1 AND NOT is_step AND NOT is_paused),
               array_agg(timer) FILTER (WHERE is_step AND (verdict = 1 OR verdict = 0 AND wants_items)),
               array_agg((timer).id) FILTER (WHERE verdict = -1),
               (SELECT array_agg(judged.id) FROM judged
                 WHERE judged.is_open_map AND NOT judged.is_item)
          INTO released, stepping, doomed, sources_ended
          FROM counted;

        IF sources_ended IS NOT NULL THEN
            stepping := stepping || ARRAY(
                SELECT timers FROM unnest(sources_ended) AS asked(id)
                  JOIN duly.timers
                    ON timers.shard = duly.shard_of(asked.id) AND timers.id = asked.id
                 WHERE timers.id <> ALL (coalesce(ARRAY(SELECT step.id FROM unnest(stepping) AS step),
                                                  '{}')));
        END IF;
        IF stepping IS NOT NULL THEN
            RETURN QUERY
            WITH armed AS (
                INSERT INTO duly.workflow_timers AS held (shard, tenant, workflow, kind, node, due_at)
                SELECT step.shard, step.tenant, duly.workflow_of(step.id),
                       CASE WHEN step.started_at IS NULL THEN 'step' ELSE 'map' END,
                       duly.node_number(step.id),
                       CASE WHEN step.started_at IS NULL THEN step.run_at ELSE duly.now() END
                  FROM unnest(stepping) AS step
                    ON CONFLICT (shard, workflow, kind, node) DO UPDATE
                   SET due_at = least(held.due_at, excluded.due_at), fence = held.fence + 1
             RETURNING held.workflow, held.tenant, held.shard, held.due_at
            )
            SELECT DISTINCT ON (armed.workflow) armed.workflow, armed.tenant, armed.shard, NULL::smallint,
                   NULL::integer, armed.due_at, NULL::smallint, NULL, NULL, NULL::integer, NULL
              FROM armed
             ORDER BY armed.workflow, armed.due_at;
        END IF;

        RETURN QUERY
        SELECT free.id, free.tenant, free.shard, free.queue, free.fence, free.due_at, free.priority,
               free.type, free.concurrency_key, free.concurrency_limit, free.host
          FROM unnest(released) AS free;
        EXIT WHEN doomed IS NULL;
        first_child := 0;

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

-- name: reverse
-- Workflows with nodes of these kinds are dropped with what is theirs, as their ends could not be told.
DELETE FROM duly.timers WHERE held_due_at IS NOT NULL OR items_mark IS NOT NULL;
DELETE FROM duly.workflow_timers
 WHERE kind NOT IN ('deadline', 'cancel', 'cascade', 'callback');
DROP FUNCTION duly.release_children, duly.stop_workflows_of, duly.workflow_ended;
CREATE OR REPLACE FUNCTION duly.stop_reason_after(stop_reason text, on_failure text, failed bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN stop_reason IS NULL AND on_failure = 'stop' AND failed > 0 THEN 'failure'
            ELSE stop_reason END;
DROP TABLE duly.workflow_signals, duly.workflow_maps, duly.workflow_map_pages;
UPDATE duly.dead_letters
   SET reason = 'rejected'
 WHERE reason IN ('items_failed', 'invalid_items', 'workflow_failed');
ALTER TABLE duly.dead_letters
    DROP CONSTRAINT dead_letters_reason_check,
    ADD CONSTRAINT dead_letters_reason_check
        CHECK (reason IN ('exhausted', 'rejected', 'non_retryable', 'expired', 'poison'));
UPDATE duly.workflows
   SET ended_at = duly.now(), state = 'FAILED'
 WHERE live = 0 AND ended_at IS NULL;
UPDATE duly.workflows SET on_failure = 'stop' WHERE on_failure = 'compensate';
ALTER TABLE duly.workflow_timers
    DROP COLUMN tries,
    DROP CONSTRAINT workflow_timers_kind_check,
    ADD CONSTRAINT workflow_timers_kind_check
        CHECK (kind IN ('deadline', 'cancel', 'cascade', 'callback'));
ALTER TABLE duly.timers
    DROP COLUMN items_mark,
    DROP COLUMN items_failed_max,
    DROP COLUMN held_due_at;
ALTER TABLE duly.workflows
    DROP CONSTRAINT workflows_on_failure_check,
    DROP CONSTRAINT workflows_check1,
    DROP COLUMN generated,
    DROP COLUMN items_failed,
    DROP COLUMN items_cancelled,
    DROP COLUMN compensated,
    DROP COLUMN compensations_failed,
    DROP COLUMN depth,
    DROP COLUMN type_version,
    DROP COLUMN paused_at,
    DROP COLUMN compensating_at,
    DROP COLUMN resumed_from,
    DROP COLUMN resumed_at,
    DROP COLUMN root,
    DROP COLUMN parent_node,
    DROP COLUMN next_workflow,
    DROP COLUMN paused_by,
    DROP COLUMN type,
    ADD CONSTRAINT workflows_on_failure_check CHECK (on_failure IN ('finish_branches', 'stop')),
    ADD CONSTRAINT workflows_check1 CHECK ((live = 0) = (ended_at IS NOT NULL));
ALTER TABLE duly.workflow_nodes
    DROP COLUMN kind,
    DROP COLUMN is_step,
    DROP COLUMN map_number,
    DROP COLUMN map_index,
    DROP COLUMN compensates,
    DROP COLUMN source,
    DROP COLUMN spec;
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
