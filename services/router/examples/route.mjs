// Send one chat request where its prefix is already cached, and record it.
//
// Asks the pool's routers over NATS where the request goes, sends it there, and
// publishes the decision and the outcome, so that all routers count it and
// `warmpath audit` can recompute it. Needs Node 18 and the npm package nats; the
// router needs the pool's tokenizer (--tokenizer).
//
//   npm install nats@2.29.3
//   WARMPATH_NATS_URL=nats://127.0.0.1:4222 WARMPATH_POOL=chat node route.mjs < request.json
//
// A replica that cannot be reached is excluded and the routers asked again. README.md
// beside this file says more.

import { createHash, randomUUID } from "node:crypto";
import { text } from "node:stream/consumers";
import { connect, headers } from "nats";

const ATTEMPTS = 3;
// Milliseconds: what an engine may take to tokenize, and a margin.
const ROUTER_TIMEOUT = 1000 * Number(process.env.WARMPATH_ROUTER_TIMEOUT ?? 2);
const NOT_READY = 2; // the error code of a router that cannot decide now

// The little of protobuf that is needed: an answer is read by field number, and the
// two events that are made here are written.
const protobuf = {
  *fields(bytes) {
    let at = 0;
    const varint = () => {
      let value = 0n;
      for (let shift = 0n; ; shift += 7n) {
        const byte = bytes[at++];
        value |= BigInt(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
      }
    };
    while (at < bytes.length) {
      const tag = Number(varint());
      const kind = tag & 7;
      let value;
      if (kind === 0) value = varint();
      else if (kind === 1) value = bytes.subarray(at, (at += 8));
      else if (kind === 5) value = bytes.subarray(at, (at += 4));
      else {
        const length = Number(varint());
        value = bytes.subarray(at, (at += length));
      }
      yield [tag >> 3, value];
    }
  },
  // message writes [field number, string or number]s; zero values are left out
  // unless they are BigInts.
  message(fields) {
    const out = [];
    const varint = (n) => {
      for (n = BigInt(n); n > 127n; n >>= 7n) out.push(Number(n & 127n) | 128);
      out.push(Number(n));
    };
    for (const [field, value] of fields) {
      if (typeof value === "string" && value !== "") {
        const bytes = new TextEncoder().encode(value);
        varint(field * 8 + 2);
        varint(bytes.length);
        out.push(...bytes);
      } else if (typeof value === "bigint" || (typeof value === "number" && value !== 0)) {
        varint(field * 8);
        varint(value);
      }
    }
    return Uint8Array.from(out);
  },
};

const utf8 = (bytes) => new TextDecoder().decode(bytes);

// Router asks and records for one pool and one gateway, whose name is unique in it.
export class Router {
  constructor(nc, pool, gateway) {
    Object.assign(this, { nc, pool, gateway });
  }

  // ask asks where a chat request goes, and again when a router cannot say now:
  // another one may.
  async ask(requestId, attempt, chat, exclude) {
    for (let tries = 0; ; tries++) {
      const answer = await this.askOnce(requestId, attempt, chat, exclude);
      if (answer.decision !== undefined) return answer;
      if (answer.code !== NOT_READY || tries === 2) throw new Error(answer.error);
    }
  }

  // askOnce asks in JSON, and for an answer in protobuf, whose decision can be
  // published as it is.
  async askOnce(requestId, attempt, chat, exclude) {
    const question = { pool: this.pool, gateway: this.gateway, request_id: requestId, attempt, chat, exclude };
    const header = headers();
    header.set("Content-Type", "application/json");
    header.set("Accept", "application/x-protobuf");
    const reply = await this.nc.request(`svc.route.${this.pool}`, JSON.stringify(question), { timeout: ROUTER_TIMEOUT, headers: header });
    const answer = { predicted: 0 };
    for (const [field, value] of protobuf.fields(reply.data)) {
      if (field === 1) answer.decision = value;
      if (field === 2) answer.address = utf8(value);
      if (field === 3) answer.code = Number(value);
      if (field === 4) answer.error = utf8(value);
      if (field === 5) answer.rank = Number(value);
    }
    for (const [field, value] of protobuf.fields(answer.decision ?? [])) {
      if (field === 14) answer.replica = utf8(value);
      if (field === 25) answer.predicted = Number(value);
    }
    return answer;
  }

  // record publishes an event. The reply is the stream's acknowledgement; an event
  // sent twice with one id is stored once.
  async record(requestId, attempt, kind, schema, data) {
    const header = headers();
    header.set("Nats-Msg-Id", `${requestId}/${attempt}/${kind}`);
    header.set("Warmpath-Schema", `warmpath.v1.${schema}`);
    header.set("Warmpath-Digest", createHash("sha256").update(data).digest("hex"));
    const reply = await this.nc.request(`route.${this.pool}.${this.gateway}`, data, { timeout: ROUTER_TIMEOUT, headers: header });
    const ack = reply.json();
    if (ack.error) throw new Error(`record ${kind}: ${ack.error.description}`);
  }

  decided(requestId, attempt, answer) {
    return this.record(requestId, attempt, "decided", "Decided", answer.decision);
  }

  moved(requestId, attempt, answer, cause) {
    const at = Date.now() * 1000;
    return this.record(requestId, attempt, "moved", "Moved", protobuf.message([
      [1, this.pool], [2, this.gateway], [3, requestId], [4, attempt], [5, at], [6, answer.replica], [7, cause],
    ]));
  }

  // finished says how a request ended: outcome has status (1 ok, 3 the engine
  // failed), httpStatus, errorKind, usage and e2e in milliseconds.
  finished(requestId, attempt, answer, outcome) {
    const usage = outcome.usage ?? {};
    const cached = usage.prompt_tokens_details?.cached_tokens;
    const count = (n) => (n === undefined || n === null ? undefined : BigInt(n)); // absent is not zero
    return this.record(requestId, attempt, "finished", "Finished", protobuf.message([
      [1, this.pool], [2, this.gateway], [3, requestId], [4, attempt], [5, Date.now() * 1000], [6, answer.replica],
      [7, outcome.status], [8, outcome.httpStatus], [9, outcome.errorKind ?? ""],
      [10, count(usage.prompt_tokens)], [11, count(usage.completion_tokens)], [12, count(cached)],
      [13, 1], // measured by the wall clock
      [16, Math.round(outcome.e2e * 1000)],
    ]));
  }
}

// complete sends a chat request to the replica that a router chooses.
export async function complete(router, chat) {
  const requestId = randomUUID(); // the same in all attempts, and never used again
  const began = performance.now();
  const exclude = [];
  for (let attempt = 0; ; attempt++) {
    const answer = await router.ask(requestId, attempt, chat, exclude);
    await router.decided(requestId, attempt, answer);
    const header = { "Content-Type": "application/json", "X-Request-Id": requestId };
    if (answer.rank !== undefined) header["X-data-parallel-rank"] = String(answer.rank);
    let response;
    try {
      response = await fetch(`${answer.address}/v1/chat/completions`, { method: "POST", headers: header, body: JSON.stringify(chat) });
    } catch (error) {
      const e2e = performance.now() - began;
      if (attempt + 1 === ATTEMPTS) {
        await router.finished(requestId, attempt, answer, { status: 3, errorKind: "dial", httpStatus: 0, e2e });
        throw error;
      }
      await router.moved(requestId, attempt, answer, "dial");
      exclude.push(answer.replica);
      continue;
    }
    const reply = await response.json().catch(() => ({}));
    const outcome = { status: response.ok ? 1 : 3, httpStatus: response.status, usage: reply.usage, e2e: performance.now() - began };
    if (!response.ok) outcome.errorKind = `http_${Math.floor(response.status / 100)}xx`;
    await router.finished(requestId, attempt, answer, outcome);
    return { request_id: requestId, replica: answer.replica, attempt, predicted_cached_tokens: answer.predicted, status: response.status, reply };
  }
}

async function main() {
  const url = new URL(process.env.WARMPATH_NATS_URL ?? "nats://127.0.0.1:4222");
  const options = { servers: url.host };
  if (url.username !== "") {
    // A role may subscribe to the inboxes of its own user only.
    options.user = decodeURIComponent(url.username);
    options.pass = decodeURIComponent(url.password);
    options.inboxPrefix = `_INBOX_${options.user}`;
  }
  const nc = await connect(options);
  try {
    const router = new Router(nc, process.env.WARMPATH_POOL ?? "chat", process.env.WARMPATH_GATEWAY ?? "js-example");
    console.log(JSON.stringify(await complete(router, JSON.parse(await text(process.stdin)))));
  } finally {
    await nc.drain();
  }
}

main().catch((error) => {
  console.error(`route.mjs: ${error.message}`);
  process.exitCode = 1;
});
