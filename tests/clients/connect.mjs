// Unary calls by the Connect protocol in JSON, many at once on one session of HTTP/2.
import http2 from "node:http2";

const [url, queue] = process.argv.slice(2);
const session = http2.connect(url);

function call(method, message) {
  return new Promise((resolve, reject) => {
    const stream = session.request({
      ":method": "POST",
      ":path": `/corvo.v1.WorkerService/${method}`,
      "content-type": "application/json",
      "connect-protocol-version": "1",
      "connect-timeout-ms": "20000",
    });
    let status = 0;
    let text = "";
    stream.on("response", (fields) => (status = fields[":status"]));
    stream.on("data", (piece) => (text += piece));
    stream.on("end", () => resolve([status, text ? JSON.parse(text) : null]));
    stream.on("error", reject);
    stream.end(JSON.stringify(message));
  });
}

const waiting = call("Fetch", { queues: [queue + "-later"], workerId: "node" });
const jobs = [...Array(200).keys()];
const made = await Promise.all(
  jobs.map((n) => call("Enqueue", { queue, payloadJson: JSON.stringify({ n }) })),
);
const [, batch] = await call("FetchBatch", { queues: [queue], workerId: "node", count: 200 });
const items = batch.jobs.map(({ jobId, leaseToken }) => ({ jobId, leaseToken }));
const [, acked] = await call("AckBatch", { items });
const [refusal, error] = await call("Enqueue", {});
await call("Enqueue", { queue: queue + "-later" });
const [, late] = await waiting;
session.close();
console.log(
  JSON.stringify({
    made: made.filter(([status]) => status === 200).length,
    acked: acked.acked,
    refusal: [refusal, error.code],
    late: late.found,
  }),
);
