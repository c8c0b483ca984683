/** What a call or a handler can end with. */

export interface ErrorItem {
  pointer: string;
  detail: string;
}

export class DulyError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** The server refused the call. `code` is stable; `errors` point at what is wrong in the body. */
export class ApiError extends DulyError {
  constructor(
    readonly status: number,
    readonly code: string,
    readonly detail: string,
    readonly errors: ErrorItem[],
    readonly retryAfterS: number | undefined,
  ) {
    super(`${code}: ${detail}`);
  }

  /** It may pass: the same call can be made again. */
  get isPassing(): boolean {
    return this.status === 429 || this.status === 503;
  }
}

/** The server could not be reached, or did not answer in time. The outcome of a write is unknown. */
export class Unreachable extends DulyError {}

/** The task had not ended within the time that `wait` was given. */
export class TaskNotEnded extends DulyError {}

/** Thrown by a handler: this task can never succeed. It becomes a dead letter at once. */
export class Reject extends DulyError {}

/** Thrown by a handler: this attempt failed, and the next one comes in `inS` seconds. */
export class Retry extends DulyError {
  constructor(
    readonly inS: number,
    message = "the handler asked for a retry",
  ) {
    super(message);
  }
}

/** Thrown by a handler: not now. The task comes again in `inS` seconds, and no attempt is charged. */
export class Snooze extends DulyError {
  constructor(readonly inS: number) {
    super(`snoozed for ${inS} s`);
  }
}
