-- name: forward
-- Secrets that all nodes of an installation share. `cursors` signs the cursors of lists, so that one
-- node can continue a list that another node began.
CREATE TABLE duly.installation_secrets (
    name   text PRIMARY KEY,
    secret bytea NOT NULL CHECK (length(secret) >= 32)
);
-- Four random UUIDs hold 488 random bits; sha256 makes 32 bytes of them without an extension.
INSERT INTO duly.installation_secrets (name, secret)
VALUES ('cursors', sha256(convert_to(concat(gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
                                            gen_random_uuid()), 'UTF8')));
GRANT SELECT ON duly.installation_secrets TO duly_engine;

-- name: reverse
-- Everything of this migration; cursors that were handed out end with it.
DROP TABLE duly.installation_secrets;
