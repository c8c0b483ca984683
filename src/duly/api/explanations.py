"""Meaning and remedy of each problem code; a problem's `type` links to its text."""

from duly.api.problems import Code

EXPLANATIONS: dict[Code, tuple[str, str]] = {
    Code.MALFORMED_REQUEST: (
        "The request is not valid HTTP, or is ambiguous.",
        "Use a common HTTP client; send each header once, and one way of framing the body.",
    ),
    Code.MALFORMED_BODY: (
        (
            "The body is not JSON: empty, cut, not UTF-8, nested too deeply, with a member given "
            "twice, or with a number out of range."
        ),
        "Correct what `detail` names. Nothing was done.",
    ),
    Code.INVALID: (
        (
            "The body is JSON, but not what this call takes; or the Idempotency-Key is empty, too "
            "long or not plain text."
        ),
        "`errors` lists what is wrong, each with a JSON pointer to its place. Nothing was done.",
    ),
    Code.INVALID_QUERY: (
        "A query parameter is unknown, given twice, or has a value that cannot be.",
        (
            "Correct the parameter that `errors` or `detail` names. A cursor is valid only for the "
            "list, the filter and the tenant that it was given for; the limit may change."
        ),
    ),
    Code.BODY_TOO_LARGE: (
        "The body is larger than this call takes.",
        (
            "Send less: shorter payloads, or a batch in parts. Keep large data elsewhere and send "
            "where it is."
        ),
    ),
    Code.UNSUPPORTED_MEDIA_TYPE: (
        "The content type is not one that this call takes, or the body is compressed.",
        "Send `Content-Type: application/json`, uncompressed.",
    ),
    Code.UNAUTHENTICATED: (
        "The credential is missing, wrong, expired or revoked; which of them is not said.",
        (
            "Send one credential: `Authorization: Bearer`, or the four headers of a signed call. "
            "Look at the clock of the caller if signatures or tokens fail."
        ),
    ),
    Code.FORBIDDEN: (
        "The credential is valid, but not permitted to do this.",
        "Use a key with the role that `detail` names, or have an admin make one.",
    ),
    Code.TENANT_SUSPENDED: (
        "An admin of the installation suspended the tenant.",
        "Ask an admin. Only settling running tasks is allowed until it is resumed.",
    ),
    Code.NOT_FOUND: (
        (
            "What the path or `tenant` names does not exist, or belongs to another tenant; the "
            "answer is the same."
        ),
        "Check the id and whose credential it is.",
    ),
    Code.METHOD_NOT_ALLOWED: (
        "The path exists and does not take this method.",
        "Use one that the header `Allow` names.",
    ),
    Code.IDEMPOTENCY_MISMATCH: (
        "The idempotency key was used before, for something else.",
        "Use a new key for a new request; repeat a request with exactly the same body.",
    ),
    Code.ALREADY_TERMINAL: (
        "The task has ended, and that never changes.",
        "Submit a new task, or replay its dead letter.",
    ),
    Code.RUNNING: (
        "The task is being executed right now.",
        "Wait for the end of the attempt, or cancel the task.",
    ),
    Code.WAITING: (
        "The task waits for other tasks of its workflow.",
        "It becomes due by itself when they have completed.",
    ),
    Code.STALE: (
        "The lease is lost: it expired, and the task may run elsewhere.",
        "Stop working on it. Nothing was changed.",
    ),
    Code.CONFLICT: (
        "The state of the resource does not allow this, or it exists already.",
        "Read it again before the next try.",
    ),
    Code.TOO_MANY: (
        "The tenant has reached its maximum of these.",
        "Remove what is not needed.",
    ),
    Code.GONE: (
        "It was there, and is kept no more: its retention is over, or its data were erased.",
        "Start it anew.",
    ),
    Code.RATE_LIMITED: (
        "The tenant's submit rate or the key's request rate is exceeded.",
        "Wait for `Retry-After` seconds and send it again; the RateLimit headers say how many fit.",
    ),
    Code.QUOTA_EXCEEDED: (
        "The tenant has reached its maximum of unfinished tasks.",
        "Wait until some have ended, or have the quota raised.",
    ),
    Code.CONCURRENCY_LIMITED: (
        "The tenant has too many concurrent calls of this kind.",
        "Wait for their answers, or for `Retry-After` seconds, and send it again.",
    ),
    Code.REQUEST_TIMEOUT: (
        "Headers or body took too long to arrive.",
        "Send it again, on a better connection or in smaller parts.",
    ),
    Code.URL_TOO_LONG: (
        "The URL is too long.",
        "Use shorter parameters.",
    ),
    Code.HEADERS_TOO_LARGE: (
        "There are too many headers, or they are too large together.",
        "Send fewer; look for cookies that do not belong here.",
    ),
    Code.TIMEOUT: (
        "The request timed out in the server. What it did is unknown.",
        "Send it again with the same idempotency key.",
    ),
    Code.OVERLOADED: (
        "The server is overloaded.",
        "Wait for `Retry-After` seconds, then send it again with the same idempotency key.",
    ),
    Code.UNAVAILABLE: (
        (
            "The database cannot be reached, or is busy with a conflicting change, or the server "
            "is stopping. What the call did is unknown."
        ),
        "Wait for `Retry-After` seconds, then send it again with the same idempotency key.",
    ),
    Code.INTERNAL: (
        "An internal error. What the request did is unknown.",
        "Send it again with the same idempotency key; report it with the line of the server's log.",
    ),
}
