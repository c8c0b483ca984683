-- name: forward
-- Signs tickets that lie with a carrier outside of PostgreSQL, where others may be able to write.
INSERT INTO duly.installation_secrets (name, secret)
VALUES ('tickets', sha256(convert_to(concat(gen_random_uuid(), gen_random_uuid(), gen_random_uuid(),
                                            gen_random_uuid()), 'UTF8')));

-- name: reverse
-- Tickets that were signed with it are void in seconds.
DELETE FROM duly.installation_secrets WHERE name = 'tickets';
