"""HTTP API: routes, requests, problems; it calls the store and answers. No SQL and no scheduling
decision lives here."""
