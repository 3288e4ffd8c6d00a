// Uses a gateway as a program does that was written for OpenAI's API. The first
// argument is where the openai package is; GATEWAY and KEYS say where the gateway
// is and which keys it takes. It ends with 0 when all of it worked, and prints
// each step, so that the test can see which was the last.
"use strict";
const assert = require("node:assert/strict");
const path = require("node:path");
const OpenAI = require(path.join(process.argv[2], "node_modules", "openai"));

const baseURL = process.env.GATEWAY + "/v1";
const keys = JSON.parse(process.env.KEYS);
const client = (key, options) => new OpenAI({ baseURL, apiKey: key, maxRetries: 0, ...options });
const openai = client(keys.ann);
const model = "org/tiny";
const hello = { model, messages: [{ role: "user", content: "say hello" }] };
const weather = [{
  type: "function",
  function: { name: "weather", description: "of a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
}];

const steps = {
  async "whole answer"() {
    const { data, response, request_id } = await openai.chat.completions.create(hello).withResponse();
    assert.equal(data.choices[0].message.content, "hello world");
    assert.equal(data.usage.prompt_tokens_details.cached_tokens, 8);
    assert.equal(response.headers.get("x-warmpath-replica"), "engine-0");
    assert.equal(response.headers.get("x-warmpath-cached-tokens"), "8");
    assert.ok(request_id && data._request_id === request_id);
  },
  async "stream"() {
    let text = "";
    for await (const chunk of await openai.chat.completions.create({ ...hello, stream: true })) {
      assert.equal(chunk.choices.length, 1, "an event without choices, which was not asked for");
      text += chunk.choices[0].delta.content ?? "";
    }
    assert.equal(text, "hello world");
  },
  async "stream with usage"() {
    let usage = null;
    for await (const chunk of await openai.chat.completions.create({ ...hello, stream: true, stream_options: { include_usage: true } })) usage = chunk.usage ?? usage;
    assert.equal(usage.completion_tokens, 2);
  },
  async "reasoning"() {
    const messages = [{ role: "user", content: "think first" }];
    let thought = "";
    for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true })) thought += chunk.choices[0].delta.reasoning_content ?? "";
    assert.equal(thought, "let me see");
  },
  async "tools"() {
    const messages = [{ role: "user", content: "how is the weather in Ulm?" }];
    const answer = await openai.chat.completions.stream({ model, messages, tools: weather }).finalChatCompletion();
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    assert.deepEqual([call.function.name, JSON.parse(call.function.arguments)], ["weather", { city: "Ulm" }]);
    messages.push(answer.choices[0].message, { role: "tool", tool_call_id: call.id, content: "rain" });
    const final = await openai.chat.completions.create({ model, messages, tools: weather });
    assert.equal(final.choices[0].message.content, "it is rain");
  },
  async "tools run by the client"() {
    let asked = "";
    const tool = { ...weather[0], function: { ...weather[0].function, parse: JSON.parse, function: ({ city }) => { asked = city; return "snow"; } } };
    const runner = openai.chat.completions.runTools({ model, messages: [{ role: "user", content: "how is the weather in Ulm?" }], tools: [tool], stream: true });
    assert.equal(await runner.finalContent(), "it is snow");
    assert.equal(asked, "Ulm");
  },
  async "abort"() {
    const controller = new AbortController();
    const messages = [{ role: "user", content: "go on for ever" }];
    let chunks = 0;
    for await (const _ of await openai.chat.completions.create({ model, messages, stream: true }, { signal: controller.signal })) if (++chunks === 2) controller.abort();
    assert.ok(chunks >= 2);
    await assert.rejects(async () => {
      const late = new AbortController();
      const request = openai.chat.completions.create({ model, messages }, { signal: late.signal });
      setTimeout(() => late.abort(), 50);
      await request;
    }, OpenAI.APIUserAbortError);
  },
  async "completions"() {
    for (const prompt of ["say hello", [1, 2, 3, 4, 5]]) {
      const whole = await openai.completions.create({ model, prompt, max_tokens: 2 });
      assert.equal(whole.choices[0].text, "hello world");
      let text = "";
      for await (const chunk of await openai.completions.create({ model, prompt, max_tokens: 2, stream: true })) text += chunk.choices[0].text;
      assert.equal(text, "hello world");
    }
  },
  async "models"() {
    const ids = [];
    for await (const m of openai.models.list()) ids.push(m.id);
    assert.deepEqual(ids, [model, "sql"]);
    assert.equal((await openai.models.retrieve(model)).id, model);
    await assert.rejects(openai.models.retrieve("gpt-9"), OpenAI.NotFoundError);
  },
  async "embeddings"() {
    const answer = await openai.embeddings.create({ model, input: ["one", "two"] });
    assert.deepEqual(answer.data.map((d) => d.embedding), [[0, 0.5], [1, 0.5]]);
  },
  async "errors"() {
    await assert.rejects(client("wp-wrong").models.list(), (e) => e instanceof OpenAI.AuthenticationError && e.status === 401 && e.code === "invalid_api_key");
    await assert.rejects(client("wp-wrong").chat.completions.create(hello), OpenAI.AuthenticationError);
    await assert.rejects(client(keys.off).chat.completions.create(hello), OpenAI.PermissionDeniedError);
    await assert.rejects(openai.chat.completions.create({ ...hello, model: "gpt-9" }), (e) => e instanceof OpenAI.NotFoundError && e.param === "model" && e.code === "model_not_found");
    await assert.rejects(openai.chat.completions.create({ model }), (e) => e instanceof OpenAI.BadRequestError && e.param === "messages");
    await assert.rejects(openai.chat.completions.create({ ...hello, temperature: 9 }), (e) => e instanceof OpenAI.BadRequestError && /temperature/.test(e.message));
  },
  async "error inside a stream"() {
    const messages = [{ role: "user", content: "break" }];
    await assert.rejects(async () => {
      for await (const _ of await openai.chat.completions.create({ model, messages, stream: true }));
    }, OpenAI.APIError);
  },
  async "limits"() {
    const limited = client(keys.slow);
    await limited.chat.completions.create(hello);
    await assert.rejects(limited.chat.completions.create(hello), (e) => e instanceof OpenAI.RateLimitError && e.headers.get("retry-after") !== null);
    // The client waits as it is told, and then it works.
    await client(keys.slow, { maxRetries: 5 }).chat.completions.create(hello);
  },
};

(async () => {
  for (const [name, step] of Object.entries(steps)) {
    await step();
    console.log("ok", name);
  }
})().catch((e) => {
  console.error(e);
  process.exit(1);
});
