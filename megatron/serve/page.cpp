#include "megatron/serve/page.h"

namespace megatron::serve {

const char* const kPage = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>megatron</title>
<link rel="icon" href="data:,">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }
textarea { width: 100%; box-sizing: border-box; font: inherit; min-height: 8rem; }
#controls { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: .5rem; }
#controls label { display: flex; flex-direction: column; font-size: .85rem; }
#output { white-space: pre-wrap; border: 1px solid #8888; border-radius: 4px; padding: .75rem;
  min-height: 8rem; margin: .75rem 0; }
#output .prompt { opacity: .6; }
#output .token:hover { background: #ffe08a; color: #000; }
#status { font-size: .85rem; opacity: .75; }
canvas { width: 100%; height: 6rem; border: 1px solid #8888; border-radius: 4px; }
button { font: inherit; padding: .25rem 1rem; }
</style>
</head>
<body>
<h1 id="title">megatron</h1>
<textarea id="prompt" aria-label="Prompt" placeholder="A text to continue"></textarea>
<div id="controls">
<label>New tokens<input id="max_tokens" type="number" value="64" min="1"></label>
<label>Temperature<input id="temperature" type="number" value="1" min="0" max="100" step="0.1"></label>
<label>Top k (0: off)<input id="top_k" type="number" value="0" min="0"></label>
<label>Top p<input id="top_p" type="number" value="0.9" min="0.01" max="1" step="0.01"></label>
<label>Repetition penalty<input id="repetition_penalty" type="number" value="1" min="0.1" step="0.1"></label>
<label>Seed (empty: any)<input id="seed" type="number"></label>
<label>Stop text<input id="stop"></label>
<label>API key<input id="key" type="password" autocomplete="off"></label>
</div>
<p><button id="go">Generate</button> <button id="halt" disabled>Stop</button>
<span id="status" role="status"></span></p>
<div id="output" aria-live="polite"></div>
<h2>Load</h2>
<canvas id="load" width="900" height="100"></canvas>
<p id="status2"></p>
<script>
"use strict";
const $ = id => document.getElementById(id);
const headers = () => {
  const all = {"Content-Type": "application/json"};
  if ($("key").value) all.Authorization = "Bearer " + $("key").value;
  return all;
};
let abort = null;

function show(choice) {
  const columns = choice.logprobs;
  if (!columns || !columns.tokens.length) {
    $("output").append(choice.text || "");
    return;
  }
  // Shows the text of the stream; a token's own text may be part of a character.
  const span = document.createElement("span");
  span.className = "token";
  span.textContent = choice.text;
  span.title = columns.tokens.map((token, i) => {
    const lines = [JSON.stringify(token) + "  " + (100 * Math.exp(columns.token_logprobs[i])).toFixed(2) + " %"];
    const top = columns.top_logprobs[i] || {};
    Object.entries(top).sort((a, b) => b[1] - a[1]).forEach(([text, value]) =>
      lines.push("   " + JSON.stringify(text) + "  " + (100 * Math.exp(value)).toFixed(2) + " %"));
    return lines.join("\n");
  }).join("\n");
  $("output").append(span);
}

async function generate() {
  const body = {prompt: $("prompt").value, max_tokens: +$("max_tokens").value,
    temperature: +$("temperature").value, top_k: +$("top_k").value, top_p: +$("top_p").value,
    repetition_penalty: +$("repetition_penalty").value, logprobs: 5, stream: true,
    stream_options: {include_usage: true}};
  if ($("seed").value !== "") body.seed = +$("seed").value;
  if ($("stop").value !== "") body.stop = [$("stop").value];
  const before = document.createElement("span");
  before.className = "prompt";
  before.textContent = body.prompt;
  $("output").replaceChildren(before);
  $("go").disabled = true;
  $("halt").disabled = false;
  $("status").textContent = "";
  abort = new AbortController();
  const start = performance.now();
  let count = 0;
  try {
    const response = await fetch("v1/completions",
      {method: "POST", headers: headers(), body: JSON.stringify(body), signal: abort.signal});
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      rest += decoder.decode(value, {stream: true});
      const frames = rest.split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        const text = frame.replace(/^data: /, "");
        if (text === "[DONE]") continue;
        const chunk = JSON.parse(text);
        if (chunk.error) throw new Error(chunk.error.message);
        chunk.choices.forEach(show);
        if (chunk.usage) count = chunk.usage.completion_tokens;
      }
    }
    const seconds = (performance.now() - start) / 1000;
    $("status").textContent = count + " tokens in " + seconds.toFixed(2) + " s, " +
      (count / seconds).toFixed(1) + " tokens/s";
  } catch (error) {
    $("status").textContent = error.name === "AbortError" ? "stopped" : error.message;
  } finally {
    $("go").disabled = false;
    $("halt").disabled = true;
  }
}

const history = [];
async function draw() {
  try {
    const text = await (await fetch("metrics", {headers: headers()})).text();
    const value = name => +(text.match(new RegExp("^vllm:" + name + "\\{[^}]*\\} (.*)$", "m")) || [0, 0])[1];
    history.push([value("num_requests_running"), value("num_requests_waiting"), value("generation_tokens_total")]);
    if (history.length > 120) history.shift();
    const canvas = $("load"), pen = canvas.getContext("2d");
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const rates = history.map((one, i) => i ? Math.max(0, one[2] - history[i - 1][2]) : 0);
    const most = Math.max(1, ...rates);
    const requests = Math.max(1, ...history.map(one => one[0] + one[1]));
    const line = (values, largest, color) => {
      pen.strokeStyle = color;
      pen.beginPath();
      values.forEach((y, i) => pen.lineTo(i * canvas.width / 119, canvas.height - 4 - y / largest * (canvas.height - 8)));
      pen.stroke();
    };
    line(rates, most, "#2a7");
    line(history.map(one => one[0]), requests, "#37c");
    line(history.map(one => one[1]), requests, "#c53");
    const last = history[history.length - 1];
    $("status2").textContent = "green: " + rates[rates.length - 1] + " tokens/s (most " + most + "), blue: " +
      last[0] + " running, red: " + last[1] + " waiting";
  } catch (error) {
    $("status2").textContent = "no metrics: " + error.message;
  }
}

$("go").onclick = generate;
$("halt").onclick = () => abort.abort();
fetch("v1/models", {headers: headers()}).then(r => r.json()).then(list => {
  $("title").textContent = list.data[0].id;
}).catch(() => {});
setInterval(draw, 1000);
draw();
</script>
</body>
</html>
)html";

}  // namespace megatron::serve
