import { Client, Worker } from "duly-client";
const client = new Client();
client.submit(1);
client.submit("a", null, { priority: "high" });
client.submit("a", null, { delay: 1 });
new Worker({ bands: ["middle"] });
const state: "NONE" = (await client.task("x")).state;
client.startWorkflow({ name: "a", nodes: { one: { typ: "a" } } });
