export { Client, TaskHandle } from "./client.js";
export type { ClientOptions, RequestOptions, SubmitOptions } from "./client.js";
export { ApiError, DulyError, Reject, Retry, Snooze, TaskNotEnded, Unreachable } from "./errors.js";
export { WorkflowHandle } from "./workflow.js";
export { Worker } from "./worker.js";
export type { Context, Handler, Parent, WorkerOptions } from "./worker.js";
export type * from "./api.js";
