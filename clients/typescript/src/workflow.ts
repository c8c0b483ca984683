/** A workflow as it was last seen, and what can be done to it. */

import type { GraphView, SignalView, WorkflowExplanation, WorkflowNodeView, WorkflowView } from "./api.js";
import { ENDED, path, WAIT_S, type Client } from "./client.js";
import { TaskNotEnded } from "./errors.js";

export class WorkflowHandle {
  constructor(
    private readonly client: Client,
    public data: WorkflowView,
  ) {}

  get id(): string {
    return this.data.id;
  }

  get state(): WorkflowView["state"] {
    return this.data.state;
  }

  async refresh(): Promise<this> {
    this.data = await this.client.request<WorkflowView>("GET", path("workflows", this.id));
    return this;
  }

  /** Until its last node has ended; `TaskNotEnded` after `timeoutS`. */
  async wait(timeoutS = Infinity): Promise<this> {
    const endsAt = performance.now() + timeoutS * 1000;
    while (true) {
      const waitS = Math.max(Math.min(WAIT_S, (endsAt - performance.now()) / 1000), 0);
      const query = { timeout_s: waitS };
      this.data = await this.client.request<WorkflowView>("GET", path("workflows", this.id, "wait"), { query, waitS });
      if (ENDED.has(this.state)) return this;
      if (performance.now() >= endsAt) {
        throw new TaskNotEnded(`workflow ${this.id} has not ended within ${timeoutS} s; it is ${this.state}`);
      }
    }
  }

  /** All nodes, page after page; with `map`, the items of the map of that name. */
  nodes(query: { map?: string; state?: WorkflowView["state"] } = {}): AsyncGenerator<WorkflowNodeView> {
    return this.client.pages<WorkflowNodeView>(path("workflows", this.id, "nodes"), { ...query });
  }

  /** What the task of a node returned; `undefined` if it has not completed. A node's task has the node's id. */
  async result(node: string): Promise<unknown> {
    for await (const each of this.nodes()) {
      if (each.name === node) return (await this.client.task(each.id)).data.result ?? undefined;
    }
    throw new RangeError(`workflow ${this.id} has no node ${node}`);
  }

  /** Each node with its state and the names of its parents. */
  graph(): Promise<GraphView> {
    return this.client.request<GraphView>("GET", path("workflows", this.id, "graph"));
  }

  /** What a node waits for, or the first that have not ended. */
  explain(node?: string): Promise<WorkflowExplanation> {
    return this.client.request<WorkflowExplanation>("GET", path("workflows", this.id, "explain"), { query: { node } });
  }

  /** For one node that waits for it, now or later. */
  signal(name: string, payload: unknown = null, idempotencyKey?: string): Promise<SignalView> {
    const options = { body: { name, payload }, idempotencyKey };
    return this.client.request<SignalView>("POST", path("workflows", this.id, "signals"), options);
  }

  /** What runs is asked to stop; what waits is cancelled. */
  cancel(): Promise<this> {
    return this.#change("cancel");
  }

  /** Nothing of it starts until `unpause`; what runs goes on. */
  pause(): Promise<this> {
    return this.#change("pause");
  }

  unpause(): Promise<this> {
    return this.#change("unpause");
  }

  async #change(what: string): Promise<this> {
    this.data = await this.client.request<WorkflowView>("POST", path("workflows", this.id, what));
    return this;
  }
}
