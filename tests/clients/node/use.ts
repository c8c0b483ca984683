import { Client, Worker, type TaskView } from "duly-client";
const client = new Client();
const task = await client.submit("a", { to: "b" }, { delay_s: 60, tags: { env: "prod" }, retry: { max_attempts: 3 } });
const view: TaskView = (await task.wait(1)).data;
new Worker({ pools: ["a"] }).task("a", async (payload: { to: string }, context) => {
  context.progress(payload.to.length);
  return context.attempt + view.priority;
});
const flow = await client.startWorkflow({ name: "a", nodes: { one: { type: "a", delay_s: 1 }, two: { type: "b", after: ["one"] } } });
const counts: number = (await flow.wait(1)).data.counts.completed + view.priority;
new Worker().task("b", (_, context) => [context.parents["one"]?.value, counts]);
