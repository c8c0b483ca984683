/**
 * A process that leases tasks, runs their handlers, and settles them.
 *
 * | event | what happens |
 * |---|---|
 * | a heartbeat answers `cancel` or `stale` | the handler's signal is aborted; `stale` settles nothing |
 * | no heartbeat is answered until a lease ends | the same as `stale`: another worker may have the task |
 * | the server cannot be reached at a settlement | tried again while the lease lasts |
 * | `stop()` | no more tasks; handlers may finish for `drainS`; the rest is aborted and released |
 * | the poll was in flight when it stopped | asked again under its request id; what it leased is released |
 */

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

import { Client, jittered, pause, type ClientOptions } from "./client.js";
import { ApiError, DulyError, Reject, Retry, Snooze } from "./errors.js";

const POLL_S = 20;
const LEASE_MAX = 500;
const HEARTBEATS_MAX = 1000;
const SETTLE_MAX = 500;
const CALL_S = 10;
const PAUSE_MAX_S = 5;
const ERROR_CHARACTERS_MAX = 2000;
const KIND_CHARACTERS_MAX = 128;
const UNKNOWN_TYPE_S = 30;

export interface WorkerOptions extends ClientOptions {
  client?: Client;
  pools?: string[];
  bands?: ("high" | "normal" | "low")[];
  /** Handlers at once. */
  concurrency?: number;
  leaseS?: number;
  /** How long handlers may go on after `stop()`. */
  drainS?: number;
  /** Where warnings go; the console unless given. */
  log?: (message: string) => void;
}

/** How a node that comes before this one in a workflow has ended; `value` is its result. */
export interface Parent {
  readonly state: "COMPLETED" | "FAILED" | "CANCELLED" | "SKIPPED";
  readonly value: any;
}

/** One attempt, as its handler sees it. */
export interface Context {
  readonly id: string;
  readonly type: string;
  readonly attempt: number;
  readonly maxAttempts: number;
  readonly fence: number;
  /** The same for every attempt of a task: what makes its effect happen once. */
  readonly executionKey: string;
  readonly scheduledFor: Date;
  /** What an earlier attempt has told as its progress. */
  readonly lastProgress: unknown;
  /** Of a node of a workflow, by name, those it comes after. Empty for other tasks, and where `parentsUrl` is given. */
  readonly parents: Readonly<Record<string, Parent>>;
  /** Where to read the parents in pages, if they are too many or too long. */
  readonly parentsUrl: string | undefined;
  /** Aborted when the task is cancelled, its lease is lost, or the worker stops. */
  readonly signal: AbortSignal;
  readonly cancelled: boolean;
  /** Told to the server with the next heartbeat; the last one counts. */
  progress(value: unknown): void;
}

export type Handler<Payload = any, Result = unknown> = (
  payload: Payload,
  context: Context,
) => Promise<Result> | Result;

interface Leased {
  id: string;
  fence: number;
  attempt: number;
  max_attempts: number;
  type: string;
  payload?: unknown;
  progress?: unknown;
  scheduled_for: string;
  started_at: string;
  lease_until: string;
  timeout_s: number;
  execution_key: string;
  parents?: Record<string, { state: Parent["state"]; result?: unknown }> | null;
  parents_url?: string | null;
}

interface Settlement {
  outcome: "completed" | "failed" | "rejected" | "cancelled" | "released" | "snoozed";
  result?: unknown;
  error?: string;
  error_kind?: string;
  retry_in_s?: number;
}

type End = "cancel" | "stale" | "stop";

class Run {
  readonly abort = new AbortController();
  end: End | undefined;
  news: unknown;
  hasNews = false;

  /** `leaseEndsAt` is by this process's monotonic clock, counted from before the lease was asked for. */
  constructor(
    readonly task: Leased,
    public leaseEndsAt: number,
  ) {}

  stop(end: End): void {
    this.end ??= end;
    this.abort.abort(new DulyError(`the attempt was stopped: ${end}`));
  }
}

export class Worker {
  readonly id = `${hostname().replace(/[^A-Za-z0-9.-]/g, "").slice(0, 60)}:${process.pid}:${randomUUID().slice(0, 12)}`;
  readonly #client: Client;
  readonly #pools: string[];
  readonly #bands: string[];
  readonly #concurrency: number;
  readonly #leaseS: number;
  readonly #drainS: number;
  readonly #log: (message: string) => void;
  readonly #handlers = new Map<string, Handler>();
  readonly #runs = new Map<string, Run>();
  readonly #settling = new Map<Run, { settlement: Settlement; done: () => void }>();
  readonly #stopping = new AbortController();
  #wake: () => void = () => {};
  #sending: Promise<void> | undefined;

  constructor(options: WorkerOptions = {}) {
    this.#client = options.client ?? new Client(options);
    this.#pools = options.pools ?? ["default"];
    this.#bands = options.bands ?? ["high", "normal", "low"];
    this.#concurrency = options.concurrency ?? 100;
    this.#leaseS = options.leaseS ?? 15;
    this.#drainS = options.drainS ?? 10;
    this.#log = options.log ?? ((message) => console.error(`duly worker: ${message}`));
  }

  /** Register the handler of a task type. */
  task<Payload, Result>(type: string, handler: Handler<Payload, Result>): this {
    this.#handlers.set(type, handler);
    return this;
  }

  /** Take no more tasks, and end `run` in order. */
  stop(): void {
    this.#stopping.abort();
    this.#wake();
  }

  /** Until `stop()`, SIGTERM or SIGINT. A key that the server refuses at the start is an error. */
  async run(): Promise<void> {
    if (this.#handlers.size === 0) throw new DulyError("the worker has no handlers: add one with worker.task");
    const onSignal = (): void => this.stop();
    process.once("SIGTERM", onSignal).once("SIGINT", onSignal);
    const beating = new AbortController();
    const heartbeat = this.#beat(beating.signal);
    try {
      await this.#poll();
    } finally {
      process.off("SIGTERM", onSignal).off("SIGINT", onSignal);
      await this.#drain();
      beating.abort();
      await heartbeat;
      const options = { body: { worker_id: this.id }, triesMax: 1, waitS: 0 };
      await this.#client.request("POST", "/v1/worker/deregister", options).catch(() => undefined);
    }
  }

  async #poll(): Promise<void> {
    let hasSucceeded = false;
    let pauseS = 0.1;
    while (!this.#stopping.signal.aborted) {
      const room = this.#concurrency - this.#runs.size;
      if (room <= 0) {
        await new Promise<void>((resolve) => (this.#wake = resolve));
        continue;
      }
      const requestId = randomUUID();
      try {
        await this.#lease(requestId, room, POLL_S, this.#stopping.signal);
        hasSucceeded = true;
        pauseS = 0.1;
      } catch (error) {
        if (this.#stopping.signal.aborted) {
          await this.#lease(requestId, room, 0).catch(() => undefined);
          break;
        }
        const isRefused = error instanceof ApiError && error.status < 500 && !error.isPassing;
        if (isRefused && !hasSucceeded) throw error;
        if (!(error instanceof DulyError)) throw error;
        this.#log(`asking for tasks failed: ${error.message}`);
        await pause(jittered(pauseS), this.#stopping.signal).catch(() => undefined);
        pauseS = Math.min(pauseS * 2, PAUSE_MAX_S);
      }
    }
  }

  async #lease(requestId: string, room: number, waitS: number, signal?: AbortSignal): Promise<void> {
    const body = {
      worker_id: this.id,
      pools: this.#pools,
      bands: this.#bands,
      max: Math.min(room, LEASE_MAX),
      wait_s: waitS,
      lease_s: this.#leaseS,
      request_id: requestId,
      sdk: "duly-typescript",
      slots: this.#concurrency,
    };
    const { tasks } = await this.#call<{ tasks: Leased[] }>("lease", body, waitS, signal);
    if (tasks.length === 0) return;
    // The answer may have waited at the server or on its way: a heartbeat begins the lease anew.
    const asked = tasks.map((task) => new Run(task, performance.now()));
    await this.#confirm(asked);
    for (const run of asked) {
      if (run.end === "stale") continue;
      this.#runs.set(key(run.task), run);
      if (this.#stopping.signal.aborted) run.stop("stop");
      void this.#execute(run);
    }
  }

  async #execute(run: Run): Promise<void> {
    const settlement = run.end === undefined ? await this.#outcome(run) : ended(run.end);
    if (settlement !== undefined) {
      await new Promise<void>((done) => {
        this.#settling.set(run, { settlement, done });
        this.#sending ??= this.#settle();
      });
    }
    this.#runs.delete(key(run.task));
    this.#wake();
  }

  /** Undefined: the lease is lost, and nothing may be said. */
  async #outcome(run: Run): Promise<Settlement | undefined> {
    const handler = this.#handlers.get(run.task.type);
    if (handler === undefined) {
      // During a deployment another worker may know it.
      this.#log(`no handler for ${run.task.type}: put off for ${UNKNOWN_TYPE_S} s`);
      return { outcome: "snoozed", retry_in_s: UNKNOWN_TYPE_S };
    }
    const limit = setTimeout(() => run.stop("stale"), run.task.timeout_s * 1000);
    const stopped = new Promise<never>((_, reject) => {
      run.abort.signal.addEventListener("abort", () => reject(run.abort.signal.reason), { once: true });
    });
    stopped.catch(() => undefined);
    try {
      const working = Promise.resolve().then(() => handler(run.task.payload ?? null, context(run)));
      // A stopped handler that goes on can change nothing here: its attempt is over.
      return completed(await Promise.race([working, stopped]));
    } catch (error) {
      return run.end === undefined ? failure(error) : ended(run.end);
    } finally {
      clearTimeout(limit);
    }
  }

  /** One call at a time; what ends meanwhile goes with the next one. */
  async #settle(): Promise<void> {
    let pauseS = 0.1;
    while (this.#settling.size > 0) {
      const batch = [...this.#settling].slice(0, SETTLE_MAX);
      const settlements = batch.map(([run, { settlement }]) => ({
        id: run.task.id,
        fence: run.task.fence,
        ...settlement,
      }));
      try {
        await this.#call("settle", { worker_id: this.id, settlements });
        pauseS = 0.1;
        for (const [run, { done }] of batch) this.#settled(run, done);
      } catch (error) {
        if (!(error instanceof DulyError)) throw error;
        this.#log(`settling failed: ${error.message}`);
        const isRefused = error instanceof ApiError && !error.isPassing && error.status < 500;
        for (const [run, { done }] of batch) {
          if (isRefused && batch.length === 1) this.#settled(run, done);
          else if (performance.now() > run.leaseEndsAt) this.#settled(run, done);
        }
        // One that the server refuses must not take the others with it: each goes alone.
        if (isRefused && batch.length > 1) await this.#settleAlone(batch);
        else await pause(jittered(pauseS));
        pauseS = Math.min(pauseS * 2, PAUSE_MAX_S);
      }
    }
    this.#sending = undefined;
  }

  async #settleAlone(batch: [Run, { settlement: Settlement; done: () => void }][]): Promise<void> {
    for (const [run, { settlement, done }] of batch) {
      const settlements = [{ id: run.task.id, fence: run.task.fence, ...settlement }];
      await this.#call("settle", { worker_id: this.id, settlements }).catch(() => undefined);
      this.#settled(run, done);
    }
  }

  #settled(run: Run, done: () => void): void {
    this.#settling.delete(run);
    done();
  }

  async #beat(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await pause(this.#leaseS / 3, signal).catch(() => undefined);
      const runs = [...this.#runs.values()].filter((run) => run.end !== "stale");
      for (let start = 0; start < runs.length; start += HEARTBEATS_MAX) {
        await this.#confirm(runs.slice(start, start + HEARTBEATS_MAX)).catch((error: Error) => {
          this.#log(`a heartbeat failed: ${error.message}`);
        });
      }
      const now = performance.now();
      for (const run of runs) if (now > run.leaseEndsAt) run.stop("stale");
    }
  }

  async #confirm(runs: Run[]): Promise<void> {
    const sentAt = performance.now();
    const leases = runs.map((run) => {
      const told = run.hasNews ? { progress: run.news } : {};
      run.hasNews = false;
      return { id: run.task.id, fence: run.task.fence, ...told };
    });
    const body = { worker_id: this.id, leases, lease_s: this.#leaseS };
    const { items } = await this.#call<{ items: { status: string }[] }>("heartbeat", body);
    runs.forEach((run, place) => {
      const status = items[place]?.status;
      if (status === "stale") run.stop("stale");
      else run.leaseEndsAt = sentAt + this.#leaseS * 1000;
      if (status === "cancel") run.stop("cancel");
    });
  }

  async #drain(): Promise<void> {
    const endsAt = performance.now() + this.#drainS * 1000;
    await this.#idle(endsAt);
    for (const run of this.#runs.values()) run.stop("stop");
    await this.#idle(endsAt + CALL_S * 1000);
  }

  async #idle(until: number): Promise<void> {
    while (this.#runs.size > 0 && performance.now() < until) {
      const changed = new Promise<void>((resolve) => (this.#wake = resolve));
      // A timer that is left would keep the process from ending.
      const timer = new AbortController();
      await Promise.race([changed, pause((until - performance.now()) / 1000, timer.signal).catch(() => undefined)]);
      timer.abort();
    }
  }

  #call<Answer>(what: string, body: unknown, waitS = 0, signal?: AbortSignal): Promise<Answer> {
    return this.#client.request<Answer>("POST", `/v1/worker/${what}`, { body, waitS, signal, triesMax: 1 });
  }
}

function key(task: Leased): string {
  return `${task.id} ${task.fence}`;
}

function context(run: Run): Context {
  const { task } = run;
  return {
    id: task.id,
    type: task.type,
    attempt: task.attempt,
    maxAttempts: task.max_attempts,
    fence: task.fence,
    executionKey: task.execution_key,
    scheduledFor: new Date(task.scheduled_for),
    lastProgress: task.progress ?? null,
    parents: Object.fromEntries(
      Object.entries(task.parents ?? {}).map(([name, { state, result }]) => [name, { state, value: result ?? null }]),
    ),
    parentsUrl: task.parents_url ?? undefined,
    signal: run.abort.signal,
    get cancelled() {
      return run.end === "cancel";
    },
    progress(value) {
      run.news = value;
      run.hasNews = true;
    },
  };
}

function ended(end: End): Settlement | undefined {
  if (end === "stale") return undefined;
  return { outcome: end === "cancel" ? "cancelled" : "released" };
}

function completed(result: unknown): Settlement {
  return result === undefined ? { outcome: "completed" } : { outcome: "completed", result };
}

function failure(error: unknown): Settlement {
  if (error instanceof Snooze) return { outcome: "snoozed", retry_in_s: Math.max(error.inS, 0) };
  const kind = error instanceof Error ? error.name.slice(0, KIND_CHARACTERS_MAX) : typeof error;
  const text = error instanceof Error ? `${error.name}: ${error.message}\n\n${error.stack ?? ""}` : String(error);
  const told = { error: text.replaceAll("\0", "\\0").slice(0, ERROR_CHARACTERS_MAX), error_kind: kind };
  if (error instanceof Reject) return { outcome: "rejected", ...told };
  if (error instanceof Retry) return { outcome: "failed", ...told, retry_in_s: Math.max(error.inS, 0) };
  return { outcome: "failed", ...told };
}

