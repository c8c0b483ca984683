/** Calls to duly's API over fetch. A write carries an idempotency key, so that it can be repeated. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

import type { AttemptView, ExplanationView, ScheduleRequest, ScheduleView, TaskRequest, TaskView } from "./api.js";
import type { WorkflowRequest, WorkflowView } from "./api.js";
import { ApiError, TaskNotEnded, Unreachable, type ErrorItem } from "./errors.js";
import { WorkflowHandle } from "./workflow.js";

const TIMEOUT_S = 30;
const TRIES_MAX = 5;
const PAUSE_FIRST_S = 0.1;
const PAUSE_MAX_S = 5;
const RETRY_AFTER_MAX_S = 30;
/** Of one long poll; a wait makes as many as it needs. */
export const WAIT_S = 20;
const BATCH_MAX = 1000;
export const ENDED: ReadonlySet<string> = new Set(["COMPLETED", "FAILED", "CANCELLED", "SKIPPED"]);

export interface ClientOptions {
  /** Default: the environment variable DULY_URL. */
  url?: string;
  /** Default: the environment variable DULY_API_KEY. */
  apiKey?: string;
  /** Longest time for one try. */
  timeoutS?: number;
  /** How often a call is tried when the server cannot be reached, or is busy. */
  triesMax?: number;
}

export interface RequestOptions {
  body?: unknown;
  query?: Record<string, string | number | boolean | undefined>;
  idempotencyKey?: string | undefined;
  /** Longer than the usual time: for calls that wait at the server. */
  waitS?: number;
  signal?: AbortSignal | undefined;
  triesMax?: number;
}

/** Everything about a task but its type and payload; `pool` and `url` are short for `target`. */
export type SubmitOptions = Omit<Partial<TaskRequest>, "type" | "payload"> & {
  pool?: string;
  url?: string;
};

export class Client {
  readonly url: string;
  readonly #apiKey: string;
  readonly #timeoutS: number;
  readonly #triesMax: number;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? process.env["DULY_URL"];
    const apiKey = options.apiKey ?? process.env["DULY_API_KEY"];
    if (!url || !apiKey) {
      throw new Unreachable("no duly was named: give url and apiKey, or set DULY_URL and DULY_API_KEY");
    }
    this.url = url.replace(/\/+$/, "");
    this.#apiKey = apiKey;
    this.#timeoutS = options.timeoutS ?? TIMEOUT_S;
    this.#triesMax = options.triesMax ?? TRIES_MAX;
  }

  async submit(type: string, payload: unknown = null, options: SubmitOptions = {}): Promise<TaskHandle> {
    const body = taskRequest(type, payload, options);
    const idempotencyKey = options.idempotency_key ?? undefined;
    return new TaskHandle(this, await this.request<TaskView>("POST", "/v1/tasks", { body, idempotencyKey }));
  }

  /** All of them or none; up to 1,000. */
  async submitMany(tasks: ({ type: string; payload?: unknown } & SubmitOptions)[]): Promise<TaskHandle[]> {
    if (tasks.length > BATCH_MAX) {
      throw new RangeError(`${tasks.length} tasks in one call, and ${BATCH_MAX} is the most`);
    }
    const body = { tasks: tasks.map(({ type, payload, ...options }) => taskRequest(type, payload, options)) };
    const { items } = await this.request<{ items: TaskView[] }>("POST", "/v1/tasks/batch", { body });
    return items.map((item) => new TaskHandle(this, item));
  }

  async task(id: string): Promise<TaskHandle> {
    return new TaskHandle(this, await this.request<TaskView>("GET", path("tasks", id)));
  }

  /** All that match, page after page. */
  tasks(query: Record<string, string | undefined> = {}): AsyncGenerator<TaskView> {
    return this.pages<TaskView>("/v1/tasks", query);
  }

  /** A graph of tasks, stored whole: `{ name, nodes: { charge: { type }, ship: { type, after: ["charge"] } } }`, or `{ type }`. */
  async startWorkflow(workflow: WorkflowRequest): Promise<WorkflowHandle> {
    const idempotencyKey = workflow.idempotency_key ?? undefined;
    const options = { body: workflow, idempotencyKey };
    return new WorkflowHandle(this, await this.request<WorkflowView>("POST", "/v1/workflows", options));
  }

  async workflow(id: string): Promise<WorkflowHandle> {
    return new WorkflowHandle(this, await this.request<WorkflowView>("GET", path("workflows", id)));
  }

  /** All that match, page after page. */
  workflows(query: Record<string, string | undefined> = {}): AsyncGenerator<WorkflowView> {
    return this.pages<WorkflowView>("/v1/workflows", query);
  }

  createSchedule(schedule: ScheduleRequest): Promise<ScheduleView> {
    return this.request<ScheduleView>("POST", "/v1/schedules", { body: schedule });
  }

  schedules(query: Record<string, string | undefined> = {}): AsyncGenerator<ScheduleView> {
    return this.pages<ScheduleView>("/v1/schedules", query);
  }

  async deleteSchedule(id: string): Promise<void> {
    await this.request<void>("DELETE", path("schedules", id));
  }

  /** A list of the API, page after page. */
  async *pages<Item>(at: string, query: Record<string, string | undefined>): AsyncGenerator<Item> {
    let cursor: string | undefined;
    do {
      const asked = { ...query, cursor, limit: 200 };
      const page = await this.request<{ items: Item[]; next_cursor: string | null }>("GET", at, { query: asked });
      yield* page.items;
      cursor = page.next_cursor ?? undefined;
    } while (cursor !== undefined);
  }

  /** Any call of the API; the types of bodies and answers are exported. */
  async request<Answer>(method: string, at: string, options: RequestOptions = {}): Promise<Answer> {
    const target = this.url + at + queryText(options.query);
    const headers: Record<string, string> = { authorization: `Bearer ${this.#apiKey}` };
    if (options.body !== undefined) headers["content-type"] = "application/json";
    if (method !== "GET") headers["idempotency-key"] = options.idempotencyKey ?? randomUUID();
    const body = options.body === undefined ? null : JSON.stringify(options.body);
    let pauseS = PAUSE_FIRST_S;
    for (let triesLeft = (options.triesMax ?? this.#triesMax) - 1; ; triesLeft--) {
      try {
        return (await this.#send(target, { method, headers, body }, options)) as Answer;
      } catch (error) {
        options.signal?.throwIfAborted();
        const askedS = error instanceof ApiError ? (error.retryAfterS ?? 0) : 0;
        const isPassing = error instanceof Unreachable || (error instanceof ApiError && error.isPassing);
        if (!isPassing || triesLeft <= 0 || askedS > RETRY_AFTER_MAX_S) throw error;
        await pause(Math.max(askedS, jittered(pauseS)), options.signal);
        pauseS = Math.min(pauseS * 2, PAUSE_MAX_S);
      }
    }
  }

  async #send(target: string, init: RequestInit, options: RequestOptions): Promise<unknown> {
    const limit = AbortSignal.timeout(Math.ceil((this.#timeoutS + (options.waitS ?? 0)) * 1000));
    const signal = options.signal ? AbortSignal.any([limit, options.signal]) : limit;
    let response: Response;
    let text: string;
    try {
      response = await fetch(target, { ...init, signal, redirect: "manual" });
      text = await response.text();
    } catch (error) {
      throw new Unreachable(`duly at ${this.url} cannot be reached: ${reason(error)}`, { cause: error });
    }
    if (response.ok) return text ? JSON.parse(text) : undefined;
    throw refusal(response, text);
  }
}

/** A task as it was last seen. */
export class TaskHandle {
  constructor(
    private readonly client: Client,
    public data: TaskView,
  ) {}

  get id(): string {
    return this.data.id;
  }

  get state(): TaskView["state"] {
    return this.data.state;
  }

  async refresh(): Promise<this> {
    this.data = await this.client.request<TaskView>("GET", path("tasks", this.id));
    return this;
  }

  /** Until it has ended, however it did; `TaskNotEnded` after `timeoutS`. */
  async wait(timeoutS = Infinity): Promise<this> {
    const endsAt = performance.now() + timeoutS * 1000;
    while (true) {
      const waitS = Math.max(Math.min(WAIT_S, (endsAt - performance.now()) / 1000), 0);
      const query = { timeout_s: waitS };
      this.data = await this.client.request<TaskView>("GET", path("tasks", this.id, "wait"), { query, waitS });
      if (ENDED.has(this.state)) return this;
      if (performance.now() >= endsAt) {
        throw new TaskNotEnded(`task ${this.id} has not ended within ${timeoutS} s; it is ${this.state}`);
      }
    }
  }

  async cancel(): Promise<this> {
    return this.#change("POST", "cancel");
  }

  async runNow(): Promise<this> {
    return this.#change("POST", "run-now");
  }

  async reschedule(to: { run_at?: string; delay_s?: number; priority?: number }): Promise<this> {
    this.data = await this.client.request<TaskView>("PATCH", path("tasks", this.id), { body: to });
    return this;
  }

  explain(): Promise<ExplanationView> {
    return this.client.request<ExplanationView>("GET", path("tasks", this.id, "explain"));
  }

  async attempts(): Promise<AttemptView[]> {
    const at = path("tasks", this.id, "attempts");
    return (await this.client.request<{ items: AttemptView[] }>("GET", at, { query: { limit: 200 } })).items;
  }

  async #change(method: string, what: string): Promise<this> {
    this.data = await this.client.request<TaskView>(method, path("tasks", this.id, what));
    return this;
  }
}

function taskRequest(type: string, payload: unknown, options: SubmitOptions): object {
  const { pool, url, ...rest } = options;
  const target = { ...rest.target, ...(pool && { pool }), ...(url && { url }) };
  return { ...rest, type, payload: payload ?? null, ...(Object.keys(target).length && { target }) };
}

export function path(...parts: string[]): string {
  return "/v1/" + parts.map(encodeURIComponent).join("/");
}

function queryText(query: RequestOptions["query"]): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined) given.set(name, String(value));
  }
  return given.size ? `?${given}` : "";
}

function refusal(response: Response, text: string): ApiError {
  let problem: { code?: string; detail?: string; errors?: ErrorItem[] } = {};
  try {
    problem = JSON.parse(text);
  } catch {
    problem = { detail: "the answer is not one of duly's" };
  }
  const after = response.headers.get("retry-after");
  return new ApiError(
    response.status,
    problem.code ?? `http_${response.status}`,
    problem.detail ?? "",
    problem.errors ?? [],
    after && /^\d+$/.test(after) ? Number(after) : undefined,
  );
}

/** Of fetch's own errors, the cause says what happened. */
function reason(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
  return cause instanceof Error ? cause.message || cause.name : String(cause);
}

/** Half of it for sure, the rest by chance, so that callers do not come back together. */
export function jittered(pauseS: number): number {
  return pauseS * (0.5 + Math.random() / 2);
}

export async function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  await sleep(seconds * 1000, undefined, signal ? { signal } : {});
}
