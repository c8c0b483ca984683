-- name: put_workflow_type
-- The next version of a type. Two that come at once compete for its number, and the second looks again.
INSERT INTO duly.workflow_types (tenant, name, version, nodes, digest, definition, template, created_at)
SELECT $1, $2, coalesce(max(known.version), 0) + 1, $3, $4, $5, $6, duly.now()
  FROM duly.workflow_types AS known
 WHERE known.tenant = $1 AND known.name = $2
    ON CONFLICT (tenant, name, version) DO NOTHING
RETURNING tenant, name, version, nodes, digest, created_at

-- name: find_workflow_type
-- One version of a type, or its latest; without its definition.
SELECT tenant, name, version, nodes, digest, created_at
  FROM duly.workflow_types
 WHERE tenant = $1 AND name = $2 AND ($3::integer IS NULL OR version = $3)
 ORDER BY version DESC
 LIMIT 1

-- name: read_definition
-- What was written, to be shown and checked again.
SELECT definition
  FROM duly.workflow_types
 WHERE tenant = $1 AND name = $2 AND version = $3

-- name: read_templates
-- What is started without a caller: of each name that version, or the latest.
SELECT asked.ordinal, found.name, found.version, found.template
  FROM unnest($1::integer[], $2::text[], $3::integer[])
       WITH ORDINALITY AS asked(tenant, name, version, ordinal)
 CROSS JOIN LATERAL (
       SELECT kept.name, kept.version, kept.template
         FROM duly.workflow_types AS kept
        WHERE kept.tenant = asked.tenant AND kept.name = asked.name
          AND (asked.version IS NULL OR kept.version = asked.version)
        ORDER BY kept.version DESC
        LIMIT 1) AS found

-- name: list_workflow_types
-- The latest version of each type, by name. A step from one name to the next skips its older versions.
WITH RECURSIVE named AS (
    (SELECT kept.name, 1 AS place
       FROM duly.workflow_types AS kept
      WHERE kept.tenant = $1 AND kept.name > $2
      ORDER BY kept.name
      LIMIT 1)
    UNION ALL
    SELECT following.name, named.place + 1
      FROM named
     CROSS JOIN LATERAL (
           SELECT kept.name
             FROM duly.workflow_types AS kept
            WHERE kept.tenant = $1 AND kept.name > named.name
            ORDER BY kept.name
            LIMIT 1) AS following
     WHERE named.place < $3
)
SELECT latest.tenant, latest.name, latest.version, latest.nodes, latest.digest, latest.created_at
  FROM named
 CROSS JOIN LATERAL (
       SELECT kept.tenant, kept.name, kept.version, kept.nodes, kept.digest, kept.created_at
         FROM duly.workflow_types AS kept
        WHERE kept.tenant = $1 AND kept.name = named.name
        ORDER BY kept.version DESC
        LIMIT 1) AS latest
 ORDER BY latest.name

-- name: list_versions
-- Of one type, newest first.
SELECT tenant, name, version, nodes, digest, created_at
  FROM duly.workflow_types
 WHERE tenant = $1 AND name = $2 AND version < $3
 ORDER BY version DESC
 LIMIT $4

-- name: count_workflow_types
-- Whether a tenant has room for another one.
SELECT count(DISTINCT name) AS types,
       count(*) FILTER (WHERE name = $2) AS versions
  FROM duly.workflow_types
 WHERE tenant = $1
