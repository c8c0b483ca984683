import { Client, Reject, Retry, Snooze, Worker } from "duly-client";

const say = (what) => console.log(JSON.stringify(what));
const worker = new Worker({ pools: ["node"], leaseS: 1, drainS: Number(process.argv[2] ?? 5), concurrency: 5 });
const seen = new Map();
worker
  .task("add", ({ a, b }, context) => ({ sum: a + b, key: context.executionKey, attempt: context.attempt }))
  .task("reject", () => { throw new Reject("not an address"); })
  .task("flaky", (_, context) => {
    if (context.attempt === 1) throw new Retry(0, "once more");
    return context.attempt;
  })
  .task("payment.charge", ({ order }) => `receipt ${order}`)
  .task("parcel.ship", (_, context) => ({ charged: context.parents.charge, approved: context.parents.approved?.value.payload }))
  .task("broken", () => { throw new TypeError("no such thing"); })
  .task("snooze", (_, context) => {
    const times = (seen.get(context.id) ?? 0) + 1;
    seen.set(context.id, times);
    if (times === 1) throw new Snooze(0);
    return times;
  })
  .task("progress", async (_, context) => {
    context.progress({ done: 1 });
    await new Promise((resolve) => setTimeout(resolve, 1500));
    return "kept its lease";
  })
  .task("long", async (_, context) => {
    say({ event: "started", id: context.id });
    await new Promise((resolve) => context.signal.addEventListener("abort", resolve));
    say({ event: "aborted", cancelled: context.cancelled });
  });
await worker.run();
say({ event: "ended" });
