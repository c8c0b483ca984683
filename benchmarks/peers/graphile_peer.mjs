// Graphile Worker: PostgreSQL and Node, with its local queue and batched completion.
// The same contract as the Python peers (contract.py): an order on stdin, JSON lines on stdout.

import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Logger, makeWorkerUtils, run } from "graphile-worker";

const PAYLOAD_BYTES = 200;
const FUTURE_POLL_MS = 50;
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const order = JSON.parse((await lines.next()).value);
const say = (facts) => console.log(JSON.stringify(facts));
// Finer than Date.now(), which counts whole milliseconds.
const now = () => (performance.timeOrigin + performance.now()) / 1000;
const quiet = new Logger(() => () => {});

// The settings of its performance page: 24 at once, 500 fetched at a time, completions of one turn
// of the event loop written together.
const preset = {
  worker: {
    connectionString: order.url,
    logger: quiet,
    concurrentJobs: 24,
    maxPoolSize: 25,
    pollInterval: FUTURE_POLL_MS,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

const taskList = {
  noop: async () => {},
  timed: async (payload) => {
    const lag = now() - payload.at;
    appendFileSync(process.env.DULY_PEER_LAGS, `${lag.toFixed(6)}\n`);
  },
};

function makePayload(at) {
  const bare = JSON.stringify({ at, data: "" }).length;
  return { at, data: "x".repeat(PAYLOAD_BYTES - bare) };
}

const manySpecs = (kind, size, at, runAt) =>
  Array.from({ length: size }, () => ({
    identifier: kind,
    payload: makePayload(at),
    runAt,
    // Without a queue name they need not wait for each other.
  }));

async function produce(utils) {
  const callers = (call) => Promise.all(Array.from({ length: order.callers }, call));
  let left = order.count;
  if (order.step === "herd") {
    const runAt = now() + order.lead_s;
    await utils.addJobs(manySpecs("timed", order.count, runAt, new Date(runAt * 1000)));
  } else if (order.step === "bulk") {
    await callers(async () => {
      while (left > 0) {
        const size = Math.min(order.batch, left);
        left -= size;
        await utils.addJobs(manySpecs("noop", size, 0));
      }
    });
  } else if (order.step === "pace") {
    const began = performance.now();
    for (let number = 0; number < order.count; number += 1) {
      const wait = began + (number * 1000) / order.per_s - performance.now();
      if (wait > 0) await new Promise((done) => setTimeout(done, wait));
      await utils.addJob("timed", makePayload(now()));
    }
  } else {
    await callers(async () => {
      while (left > 0) {
        left -= 1;
        await utils.addJob("noop", makePayload(0));
      }
    });
  }
}

if (order.step === "consume") {
  say({ ready: true });
  await lines.next();
  const runner = await run({ preset, taskList });
  await runner.promise;
} else {
  const utils = await makeWorkerUtils({ preset });
  if (order.step === "setup") {
    await utils.migrate();
  } else {
    const began = performance.now();
    await produce(utils);
    say({ tasks: order.count, seconds: (performance.now() - began) / 1000 });
  }
  await utils.release();
  process.exit(0);
}
