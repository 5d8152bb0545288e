// node page_script.js FOLDER: checks the functions of the server's pages that need no document.
"use strict";
const assert = require("node:assert");
const {readFileSync} = require("node:fs");
const folder = process.argv[2];
const functions = (names, ...files) =>
  new Function(`${files.map(file => readFileSync(`${folder}/${file}`, "utf8")).join("\n")}\nreturn {${names.join(", ")}};`)();

const page = functions(["requestOf", "eventsOf", "pieceOf", "surprise", "percent", "visible", "historyWith", "historyOf",
  "metricOf", "loadBetween"], "report/numbers.js", "serve/page.js");

const settings = {max_tokens: 8, temperature: 0, top_k: 0, top_p: 0.9, repetition_penalty: 1, seed: "3", stop: "", system: ""};
const base = {stream: true, stream_options: {include_usage: true}, max_tokens: 8, temperature: 0, top_k: 0, top_p: 0.9,
  repetition_penalty: 1, seed: 3};
const user = text => ({role: "user", text});
assert.deepStrictEqual(page.requestOf("completion", settings, [user("The")], " sea"),
  {...base, prompt: "The sea", logprobs: 5});
assert.deepStrictEqual(page.requestOf("chat", {...settings, system: "s", stop: "."}, [user("Hi")]),
  {...base, stop: ["."], messages: [{role: "system", content: "s"}, {role: "user", content: "Hi"}], logprobs: true, top_logprobs: 5});
const continued = page.requestOf("chat", settings, [user("Hi")], "We");
assert.deepStrictEqual(continued.messages.at(-1), {role: "assistant", content: "We"});
assert.strictEqual(continued.continue_final_message, true);
assert.strictEqual(continued.add_generation_prompt, false);

assert.deepStrictEqual(page.eventsOf("data: {}\n\ndata: [DONE]\n\ndata: {\"a"), {events: ["{}", "[DONE]"], rest: "data: {\"a"});

const completion = page.pieceOf({text: " sea", logprobs: {tokens: [" sea"], token_logprobs: [-1],
  top_logprobs: [{" lake": -2, " sea": -1, "\ufffd": -3}]}});
assert.strictEqual(completion.text, " sea");
assert.deepStrictEqual(completion.tokens[0].top.map(one => [one.text, one.ends]), [[" sea", false], [" lake", false], ["\ufffd", true]]);
assert.deepStrictEqual(page.pieceOf({text: "", logprobs: null}), {text: "", tokens: []});
const chat = page.pieceOf({delta: {content: "a"}, logprobs: {content: [{token: "a", logprob: -0.01, bytes: [97],
  top_logprobs: [{token: "a", logprob: -0.01, bytes: [97]}, {token: "</s>", logprob: -9, bytes: null}]}]}});
assert.deepStrictEqual(chat.tokens[0].top.map(one => one.ends), [false, true]);
assert.deepStrictEqual(page.pieceOf({delta: {role: "assistant", content: ""}, logprobs: null}), {text: "", tokens: []});

const sure = share => page.surprise({tokens: [{value: 0}, {value: Math.log(share)}]});
assert.deepStrictEqual([0.95, 0.6, 0.3, 0.1, 0.01].map(sure), [0, 1, 2, 3, 4]);
assert.strictEqual(page.surprise({tokens: []}), 0);
assert.strictEqual(page.percent(0), "100.0 %");
assert.strictEqual(page.percent(Math.log(0.0123)), "1.23 %");
assert.strictEqual(page.percent(-30), "< 0.01 %");
assert.strictEqual(page.visible("  a b\n"), "\u2423\u2423a b\u23ce");

const talk = id => ({id, mode: "chat", messages: [user("x")]});
assert.deepStrictEqual(page.historyWith([talk(1), talk(2)], talk(2)).map(one => one.id), [2, 1]);
assert.strictEqual(page.historyWith(Array.from({length: 60}, (_, k) => talk(k)), talk(99)).length, 50);
const long = id => ({id, mode: "chat", messages: [user("x".repeat(4e5))]});
assert.deepStrictEqual(page.historyWith([long(1), long(2), long(3)], long(4)).map(one => one.id), [4, 1]);
assert.deepStrictEqual(page.historyOf(null), []);
assert.deepStrictEqual(page.historyOf("{"), []);
assert.deepStrictEqual(page.historyOf(JSON.stringify([talk(1), {id: 2, mode: "x", messages: [user("x")]}, null,
  {id: 3, mode: "chat", messages: [{role: "user"}]}, {id: 4, mode: "chat", messages: []}])), [talk(1)]);

const metrics = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"a b\"} 3\n";
assert.strictEqual(page.metricOf(metrics, "num_requests_running"), 3);
assert.strictEqual(page.metricOf(metrics, "num_requests_waiting"), 0);
assert.strictEqual(page.loadBetween(undefined, {at: 5, drawn: 7}).rate, 0);
assert.strictEqual(page.loadBetween({at: 1000, drawn: 10}, {at: 3000, drawn: 50}).rate, 20);
assert.strictEqual(page.loadBetween({at: 1000, drawn: 10}, {at: 3000, drawn: 0}).rate, 0);  // another server

const docs = functions(["resolved", "operationsOf", "fieldsOf"], "serve/docs.js");
const description = JSON.parse(readFileSync(`${folder}/serve/openapi.json`, "utf8"));
const operations = docs.operationsOf(description);
const completions = operations.find(one => one.path === "/v1/completions");
assert.strictEqual(completions.method, "POST");
assert.deepStrictEqual(completions.names, ["/completions"]);
const fields = docs.fieldsOf(description, completions.operation.requestBody.content["application/json"].schema);
assert.strictEqual(fields[0].name, "prompt");
assert.match(fields[0].about, /^required\. A text/);
assert.match(fields.find(field => field.name === "logprobs").about, /^at least 0, at most 20\. /);
const tags = description.tags.map(tag => tag.name);
assert(operations.every(one => one.operation.tags.every(tag => tags.includes(tag))));
