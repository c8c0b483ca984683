-- The outbox of a producer whose data lives in another PostgreSQL than duly's. It writes rows here in
-- its own transactions; `duly relay` forwards them and deletes them once duly has stored the tasks.
CREATE TABLE IF NOT EXISTS duly_outbox (
    -- Names the row for ever, and so the task: its idempotency key is made of it.
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    position   bigint GENERATED ALWAYS AS IDENTITY,
    type       text NOT NULL,
    payload    json NOT NULL DEFAULT 'null',
    -- Every other field of POST /v1/tasks: delay_s, run_at, target, priority, retry, tags, ...
    options    jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(options) = 'object'),
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX IF NOT EXISTS duly_outbox_position ON duly_outbox (position);

-- Rows that duly refused, with its reason. Mend and insert them into duly_outbox again, or delete them.
CREATE TABLE IF NOT EXISTS duly_outbox_refused (
    id         uuid PRIMARY KEY,
    type       text NOT NULL,
    payload    json NOT NULL,
    options    jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    refused_at timestamptz NOT NULL DEFAULT now(),
    error      text NOT NULL
);

-- A hint for the relay, which looks by itself every second anyway. Drop the trigger if commits per
-- second matter more to you than that second.
CREATE OR REPLACE FUNCTION duly_outbox_ring() RETURNS trigger LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('duly_outbox', '');
    RETURN NULL;
END
$$;
DROP TRIGGER IF EXISTS duly_outbox_ring ON duly_outbox;
CREATE TRIGGER duly_outbox_ring AFTER INSERT ON duly_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION duly_outbox_ring();
