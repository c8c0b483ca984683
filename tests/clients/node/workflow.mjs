import { Client, TaskNotEnded } from "duly-client";

const client = new Client();
const out = {};
const order = await client.startWorkflow({
  name: "order.fulfil",
  defaults: { target: { pool: "node" } },
  nodes: {
    charge: { type: "payment.charge", payload: { order: 7 } },
    approved: { wait: { signal: "approved", timeout_s: 3600 }, after: ["charge"] },
    ship: { type: "parcel.ship", after: ["charge", "approved"] },
    apologise: { type: "apologise", after: ["charge"], when: "any_failed" },
  },
  idempotency_key: "order-7",
});
out.early = await order.wait(0.1).catch((error) => error instanceof TaskNotEnded || String(error.stack));
out.explained = (await order.explain("ship")).nodes[0].name;
out.paused = Boolean((await order.pause()).data.paused_at);
await order.unpause();
out.signal = (await order.signal("approved", { by: "ann" }, "once")).name;
await order.wait(30);
out.state = order.state;
out.counts = [order.data.counts.completed, order.data.counts.skipped];
out.shipped = await order.result("ship");
out.skipped = (await order.result("apologise")) === undefined;
out.unknown = await order.result("pay").catch((error) => error.message.includes("no node pay"));
const names = [];
for await (const node of order.nodes()) names.push(node.name);
out.nodes = names;
out.after = (await order.graph()).nodes[2].after;
const again = await client.workflow(order.id);
out.same = (await again.refresh()).id === order.id;
const listed = [];
for await (const each of client.workflows({ name: "order.fulfil" })) listed.push(each.id);
out.listed = listed.includes(order.id);
const other = await client.startWorkflow({ name: "long", nodes: { one: { type: "x", delay_s: 3600 } } });
out.cancelled = (await (await other.cancel()).wait(10)).state;
console.log(JSON.stringify(out));
