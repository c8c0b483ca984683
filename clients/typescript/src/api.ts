/**
 * Bodies of requests and answers, made from duly's OpenAPI description by
 * `python -m tests.typescript_types`. Instants are RFC 3339 texts, durations numbers of seconds.
 */

/** The node that stands for a workflow, and the workflow that it is in. */
export interface AroundView {
  workflow: string;
  node: string;
}

/** One that has ended, or the one that runs: outcome `running`, `lease_until`, no `ended_at`. */
export interface AttemptView {
  fence: number;
  attempt: number;
  outcome: string;
  ended_at?: string | null;
  lease_until?: string | null;
  holder?: string | null;
  started_at?: string | null;
  state?: State | null;
  reason?: string | null;
  result?: unknown | null;
  error?: string | null;
}

/** A parent that has not ended, or whose end decided. */
export interface BindingParent {
  name: string;
  state: State;
  next_at?: string | null;
}

/** Of the newest occurrences, those that were to fire, and those that fired on time. */
export interface CadenceView {
  expected: number;
  fired: number;
  flag: "late_or_skipped" | "overdue" | null;
}

/** A task made at the end of a task or a workflow: its payload says how that ended. */
export interface CallbackRequest {
  type: string;
  target: Target;
}

/** The task that undoes a node once its workflow has failed and the node had completed; of a map, each item that completed. It is handed what it undoes as its parent, with the result. `payload`: if not given, that of what it undoes; not with a map. */
export interface CompensateRequest {
  type: string;
  payload?: unknown;
  target?: Target | null;
  priority?: number | null;
  retry?: RetryOptions | null;
  timeout_s?: number | null;
  tags?: Record<string, string> | null;
  envelope?: boolean;
}

/** How far what completed is undone: RUNNING, then COMPLETED, FAILED if something could not be undone, or CANCELLED with its workflow. `completed`: what is undone; `failed`: what could not be, or was cancelled. `not_undone`: names of nodes and items that stay done, the first 20; not in lists. */
export interface CompensationView {
  state: State;
  /** RFC 3339, with an offset. */
  started_at: string;
  completed: number;
  failed: number;
  not_undone?: string[] | null;
}

/** The task fires `wait_s` after the last submit of its type and payload, or `key`, but at most `max_wait_s` after the first. It keeps the first one's payload. */
export interface Debounce {
  wait_s: number;
  max_wait_s?: number | null;
  key?: string | null;
}

/** `binding` names the entry of `gates` to look at first; null if the task runs, has ended, or is on its way. `estimate_at` is the expected start without intervention. */
export interface ExplanationView {
  state: State;
  summary: string;
  gates: GateView[];
  binding: string | null;
  estimate_at: string | null;
}

/** `until` is when it opens by itself, `unblock` what would open it now; null if nothing is. */
export interface GateView {
  gate: string;
  open: boolean;
  reason?: string | null;
  until?: string | null;
  unblock?: string | null;
}

/** A map is one node; its items are listed by `nodes?map=`. `compensation`: how far it is undone, of a map over 20,000 of its items at most. */
export interface GraphNode {
  name: string;
  state: State;
  after?: string[];
  when?: "all_completed" | "all_done" | "any_completed" | "any_failed" | "none_failed";
  kind?: "map" | "task" | "wait" | "workflow";
  map?: MapView | null;
  compensation?: State | null;
  workflow?: InnerWorkflowView | null;
}

/** All nodes in the order in which they were given, each with the names of its parents. */
export interface GraphView {
  id: string;
  name: string;
  state: State;
  nodes: GraphNode[];
}

/** A graph of its own that a node starts. */
export interface InnerGraph {
  deadline_s?: number | null;
  on_failure?: OnFailure;
  defaults?: TaskDefaults;
  callback?: CallbackRequest | null;
  tags?: Record<string, string> | null;
  name: string;
  nodes: Record<string, NodeRequest>;
}

/** The workflow that a node started, which stands for it. */
export interface InnerWorkflowView {
  id: string;
  name: string;
  state: State;
}

/** A task for each item, of the node's `type` and with what tasks have. The item is the payload; beside a payload of the node, an object, it is its member `item`. `over`: a list, a number, or `pages`, which the one node in `after` hands over while it runs. `max_items`: 10,000 if not given, 1,000,000 over a number; with more it fails. `max_parallel`: items that have not ended at a time. `tolerate`: with more failed items than that it fails; with none, if not given. */
export interface MapRequest {
  over: "pages" | MapSource;
  max_items?: number | null;
  max_parallel?: number | null;
  tolerate?: MapTolerance;
}

/** The list at `path`, a JSON pointer, in the result of a node in `after`; or so many numbers, from 0 on. */
export interface MapSource {
  node?: string | null;
  path?: string | null;
  count?: number | null;
}

/** How many items may fail: of a hundred, or in all. */
export interface MapTolerance {
  percent?: number | null;
  count?: number | null;
}

/** How far a map is. `items`: how many it has, once that is known; `made`: those that have a task; `open`: those of them that have not ended; `tolerated`: how many may fail. */
export interface MapView {
  items?: number | null;
  made: number;
  open: number;
  completed: number;
  failed: number;
  cancelled: number;
  tolerated?: number | null;
}

/** How many nodes are in each state. */
export interface NodeCounts {
  waiting: number;
  scheduled: number;
  ready: number;
  running: number;
  completed: number;
  failed: number;
  skipped: number;
  cancelled: number;
}

/** Why a node stands where it does. `blocked_by` are the nodes at the beginning of all chains that lead to it which could move now. `waits_for`: of a wait that has begun. `workflow`: the one that it started. */
export interface NodeExplanation {
  id: string;
  name: string;
  state: State;
  when: "all_completed" | "all_done" | "any_completed" | "any_failed" | "none_failed";
  detail: string;
  parents: BindingParent[];
  blocked_by: BindingParent[];
  waits_for?: WaitingFor | null;
  workflow?: InnerWorkflowView | null;
}

/** One node: what it runs, the nodes it comes after, and the rule by which these let it run. It is a task (`type` and what tasks have), with `map` a task for each item, a wait, or a workflow: a run of a type (`name@version`, without a version the latest of now) or of a graph, with which it ends. Its `payload` is that of each node inside without one. `if`: a predicate on the results of its parents, without which it is skipped. `delay_s` counts from their end. `envelope`: its webhook's body is `{"payload", "parents"}`. `compensate`: what undoes it, in a workflow with `on_failure: compensate`. */
export interface NodeRequest {
  type?: string | null;
  map?: MapRequest | null;
  wait?: WaitRequest | null;
  workflow?: string | InnerGraph | null;
  after?: string[];
  when?: "all_completed" | "all_done" | "any_completed" | "any_failed" | "none_failed";
  if?: Record<string, unknown> | null;
  payload?: unknown;
  delay_s?: number | null;
  target?: Target | null;
  priority?: number | null;
  retry?: RetryOptions | null;
  timeout_s?: number | null;
  jitter_s?: number | null;
  concurrency_key?: string | null;
  concurrency_limit?: number | null;
  tags?: Record<string, string> | null;
  envelope?: boolean;
  compensate?: CompensateRequest | null;
}

/** What each occurrence of a schedule starts: `name` and `nodes`, or a `type`: `name` or `name@version`, without a version the latest. `payload` is that of each node without one of its own. */
export interface OccurrenceWorkflow {
  deadline_s?: number | null;
  on_failure?: OnFailure;
  defaults?: TaskDefaults;
  callback?: CallbackRequest | null;
  tags?: Record<string, string> | null;
  name?: string | null;
  nodes?: Record<string, NodeRequest>;
  type?: string | null;
  payload?: unknown;
}

/** What the first failed node means for the others: those that do not depend on it go on, or everything that does not run yet is cancelled. */
export type OnFailure = "compensate" | "finish_branches" | "stop";

/** How a wait ends that nothing has ended in time. */
export type OnTimeout = "continue" | "fail" | "skip";

export interface Paused {
  at: string;
  by: string;
  reason: string;
}

export interface RetryOptions {
  max_attempts?: number;
  backoff?: "exponential" | "fixed";
  initial_s?: number;
  factor?: number;
  max_s?: number;
  jitter?: boolean;
  non_retryable?: string[];
  retry_4xx?: boolean;
}

export interface RetryPolicy {
  max_attempts?: number;
  backoff?: "exponential" | "fixed";
  initial_s?: number;
  factor?: number;
  max_s?: number;
  jitter?: boolean;
  non_retryable?: string[];
  retry_4xx?: boolean;
}

/** `task` is what each occurrence submits, or `workflow` what it starts. The defaults of task types are filled in now, and stay until the schedule is edited. */
export interface ScheduleRequest {
  cron?: string | null;
  every_s?: number | null;
  /** IANA, Europe/Berlin. */
  timezone?: string;
  misfire?: "coalesce" | "fire_all" | "skip";
  misfire_window_s?: number;
  overlap?: "allow" | "cancel_previous" | "queue_one" | "skip";
  max_running?: number | null;
  dst_gap?: "shift" | "skip";
  dst_repeat?: "both" | "first" | "second";
  jitter_s?: number;
  start_at?: string | null;
  end_at?: string | null;
  max_fires?: number | null;
  /** Local dates of its time zone. */
  exclude_dates?: string[];
  name: string;
  task?: TaskRequest | null;
  workflow?: OccurrenceWorkflow | null;
}

/** `next_at` is the nominal time of the next occurrence, `next_due_at` that with the schedule's own jitter. `running` counts its live tasks, where the overlap policy looks at them. Lists leave out the payload of `task`. */
export interface ScheduleView {
  id: string;
  name: string;
  state: "ACTIVE" | "ENDED" | "PAUSED";
  cron: string | null;
  every_s: number | null;
  timezone: string;
  task: unknown | null;
  workflow: unknown | null;
  misfire: "coalesce" | "fire_all" | "skip";
  misfire_window_s: number;
  overlap: "allow" | "cancel_previous" | "queue_one" | "skip";
  max_running: number | null;
  dst_gap: string;
  dst_repeat: string;
  jitter_s: number;
  start_at: string | null;
  end_at: string | null;
  max_fires: number | null;
  exclude_dates: string[];
  paused: Paused | null;
  next_at: string | null;
  next_due_at: string | null;
  jitter_offset_s: number;
  fires: number;
  running: number | null;
  cadence: CadenceView;
  created_at: string;
  updated_at: string;
}

/** What is told to a workflow: a name, and a payload that the waiting node answers with. With an idempotency key, the same signal is taken once by this workflow. */
export interface SignalRequest {
  name: string;
  payload?: unknown;
  idempotency_key?: string | null;
}

/** A signal as it stands. `node`: which one got it; without it, it is kept for one that will wait. The answer to the one who sent it leaves out the payload. */
export interface SignalView {
  number: number;
  name: string;
  sender: string;
  role: string;
  /** RFC 3339, with an offset. */
  received_at: string;
  node?: string | null;
  consumed_at?: string | null;
  idempotency_key?: string | null;
  payload?: unknown | null;
}

export type State = "CANCELLED" | "COMPLETED" | "FAILED" | "READY" | "RUNNING" | "SCHEDULED" | "SKIPPED" | "WAITING";

/** At most `limit` tasks of its type, or of its `key`, become due in `period_s`, evenly spread; each further one is due that much later. */
export interface SubmitThrottle {
  limit: number;
  period_s: number;
  key?: string | null;
}

/** A webhook (`url`, `headers`) or a worker pool. */
export interface Target {
  url?: string | null;
  pool?: string | null;
  headers?: Record<string, string>;
}

/** What a task type fills in where a submission says nothing. */
export interface TaskDefaults {
  target?: Target | null;
  priority?: number | null;
  retry?: RetryOptions | null;
  timeout_s?: number | null;
  jitter_s?: number | null;
}

/** A submitted task; null means the same as not given. `run_at` or `delay_s`, not both. No text in it, the payload's included, has the character U+0000. */
export interface TaskRequest {
  type: string;
  payload?: unknown;
  run_at?: string | null;
  delay_s?: number | null;
  target?: Target | null;
  priority?: number | null;
  retry?: RetryOptions | null;
  timeout_s?: number | null;
  start_by?: string | null;
  jitter_s?: number | null;
  concurrency_key?: string | null;
  concurrency_limit?: number | null;
  idempotency_key?: string | null;
  tags?: Record<string, string> | null;
  unique?: Unique | null;
  debounce?: Debounce | null;
  throttle?: SubmitThrottle | null;
  callback?: CallbackRequest | null;
}

/** A task as it stands. */
export interface TaskView {
  id: string;
  state: State;
  type: string;
  /** RFC 3339, with an offset. */
  run_at: string;
  /** RFC 3339, with an offset. */
  created_at: string;
  attempt: number;
  max_attempts: number;
  priority: number;
  target: Target;
  timeout_s: number;
  retry: RetryPolicy;
  start_by?: string | null;
  jitter_s?: number;
  concurrency_key?: string | null;
  concurrency_limit?: number | null;
  idempotency_key?: string | null;
  execution_key?: string | null;
  tags?: Record<string, string> | null;
  replay_of?: string | null;
  workflow?: string | null;
  node?: string | null;
  index?: number | null;
  next_at?: string | null;
  payload?: unknown | null;
  holder?: string | null;
  fence?: number | null;
  lease_until?: string | null;
  cancel_requested?: boolean;
  progress?: unknown | null;
  result?: unknown | null;
  error?: string | null;
  reason?: string | null;
  finished_at?: string | null;
  purged?: boolean;
  callback?: CallbackRequest | null;
}

/** One task of its type in `period_s`: of the same payload, or of the same `key`. A submit that comes later in the period is answered with the first one's task. */
export interface Unique {
  period_s: number;
  key?: string | null;
}

/** What a node waits for. With `signal`: until one of that name is sent by a credential with the role or a higher one; after `timeout_s` it is skipped, fails, or completes (`continue`). Without a signal: for `delay_s` from when its parents let it begin, or until an instant. */
export interface WaitRequest {
  signal?: string | null;
  role?: "admin" | "operator" | "producer";
  timeout_s?: number | null;
  on_timeout?: OnTimeout;
  delay_s?: number | null;
  until?: string | null;
}

/** What a wait node waits for: a signal, who may send it, and until when; or only until when. */
export interface WaitingFor {
  signal?: string | null;
  role?: string | null;
  until?: string | null;
}

/** Of one node, or of the first nodes that have not ended: those that wait for a signal or their time, then the others. */
export interface WorkflowExplanation {
  id: string;
  state: State;
  nodes: NodeExplanation[];
}

/** A node as it stands; its task has the same id. `parents_pending`: how many have not ended. `source`: of one that is reused, the node of an earlier workflow whose task stands for it. `index`: of an item, its place in its map. `compensates`: the node or item that it undoes. `workflow`: the one that it started. */
export interface WorkflowNodeView {
  id: string;
  name: string;
  state: State;
  when: "all_completed" | "all_done" | "any_completed" | "any_failed" | "none_failed";
  kind?: "map" | "task" | "wait" | "workflow";
  type?: string | null;
  parents?: number;
  parents_pending?: number | null;
  delay_s?: number;
  next_at?: string | null;
  started_at?: string | null;
  finished_at?: string | null;
  reason?: string | null;
  source?: string | null;
  map?: MapView | null;
  index?: number | null;
  compensates?: string | null;
  workflow?: InnerWorkflowView | null;
}

/** A graph of tasks: `name` and `nodes`, or a `type`: `name` or `name@version`, without a version the latest. With an idempotency key, the same body under the same name starts it once. `payload` is that of each node without one of its own. */
export interface WorkflowRequest {
  deadline_s?: number | null;
  on_failure?: OnFailure;
  defaults?: TaskDefaults;
  callback?: CallbackRequest | null;
  tags?: Record<string, string> | null;
  name?: string | null;
  nodes?: Record<string, NodeRequest>;
  type?: string | null;
  payload?: unknown;
  idempotency_key?: string | null;
}

/** A workflow as it stands: RUNNING until its last node has ended. `critical_path` are the nodes that decide when it ends, `estimate_at` when that may be; neither for more than 1,000 nodes. `resumed_from`: the workflow whose finished nodes it reuses. `parent`: of one within another. */
export interface WorkflowView {
  id: string;
  name: string;
  state: State;
  nodes: number;
  edges: number;
  counts: NodeCounts;
  /** RFC 3339, with an offset. */
  created_at: string;
  on_failure: OnFailure;
  type?: string | null;
  resumed_from?: string | null;
  parent?: AroundView | null;
  paused_at?: string | null;
  paused_by?: string | null;
  ended_at?: string | null;
  deadline_at?: string | null;
  stop_reason?: string | null;
  tags?: Record<string, string> | null;
  compensation?: CompensationView | null;
  critical_path?: string[] | null;
  estimate_at?: string | null;
}
