// Requests, streams and the history, without the document.

const kFields = ["max_tokens", "temperature", "top_k", "top_p", "repetition_penalty"];
const kKept = 50;          // conversations in the history
const kKeptBytes = 1e6;    // of them together

// The body of a request. Messages of a chat alternate: {role, text}; a completion has one text. `begun` is the
// beginning of the response, which the model continues.
function requestOf(mode, settings, messages, begun = "") {
  const body = {stream: true, stream_options: {include_usage: true}};
  for (const name of kFields) body[name] = settings[name];
  if (settings.seed !== "") body.seed = +settings.seed;
  if (settings.stop !== "") body.stop = [settings.stop];
  if (mode === "completion") {
    body.prompt = messages[0].text + begun;
    body.logprobs = 5;
    return body;
  }
  body.messages = messages.map(({role, text}) => ({role, content: text}));
  if (settings.system !== "") body.messages.unshift({role: "system", content: settings.system});
  if (begun) {
    body.messages.push({role: "assistant", content: begun});
    body.continue_final_message = true;
    body.add_generation_prompt = false;
  }
  body.logprobs = true;
  body.top_logprobs = 5;
  return body;
}

// Splits a stream into the texts of its complete events and the rest.
function eventsOf(stream) {
  const frames = stream.split("\n\n");
  const rest = frames.pop();
  return {events: frames.map(frame => frame.replace(/^data: /, "")), rest};
}

// The new text of a choice of either interface: {text, tokens: [{text, value, ends, top: [{text, value, ends}]}]}, where
// value is the log-probability. A token that ends the text, or is a part of a character, has no text to continue with.
function pieceOf(choice) {
  const isWhole = text => !text.includes("\ufffd");
  if (choice.delta) {
    const one = entry => ({text: entry.token, value: entry.logprob, ends: entry.bytes === null || !isWhole(entry.token)});
    const entries = choice.logprobs?.content ?? [];
    return {text: choice.delta.content ?? "",
      tokens: entries.map(entry => ({...one(entry), top: entry.top_logprobs.map(one)}))};
  }
  const columns = choice.logprobs ?? {tokens: []};
  return {text: choice.text, tokens: columns.tokens.map((text, k) => ({text, value: columns.token_logprobs[k], ends: !isWhole(text),
    top: Object.entries(columns.top_logprobs[k] ?? {}).map(([text, value]) => ({text, value, ends: !isWhole(text)}))
      .sort((a, b) => b.value - a.value)}))};
}

// 0 for a token that was expected, 4 for one that was not: by the least log-probability of a piece.
function surprise(piece) {
  const least = Math.min(0, ...piece.tokens.map(token => token.value ?? 0));
  return [0.9, 0.5, 0.2, 0.05].filter(bound => Math.exp(least) < bound).length;
}

function percent(value) {
  const share = 100 * Math.exp(value);
  return (share >= 10 ? share.toFixed(1) : share >= 0.01 ? share.toFixed(2) : "< 0.01") + " %";
}

// A text on one line, with its blanks visible.
const visible = text => text.replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5").replace(/^ +| +$/g, blanks => "\u2423".repeat(blanks.length));

// The history with a conversation as the newest, without those that are too many.
function historyWith(list, one) {
  const all = [one, ...list.filter(other => other.id !== one.id)].slice(0, kKept);
  while (all.length > 1 && JSON.stringify(all).length > kKeptBytes) all.pop();
  return all;
}

// Conversations of a stored text; none if it is damaged.
function historyOf(text) {
  try {
    const list = JSON.parse(text ?? "[]");
    return Array.isArray(list) ? list.filter(one => typeof one?.id === "number" && ["chat", "completion"].includes(one.mode)
      && Array.isArray(one.messages) && one.messages.length
      && one.messages.every(message => ["user", "assistant"].includes(message?.role) && typeof message.text === "string")) : [];
  } catch {
    return [];
  }
}

// The value of one number of /metrics; 0 if it is absent.
function metricOf(text, name) {
  const line = text.split("\n").find(one => one.startsWith(`vllm:${name}{`));
  return line ? +line.slice(line.lastIndexOf(" ") + 1) : 0;
}

// A point of the load from two readings {at, running, waiting, cache, drawn}, with `at` in ms.
function loadBetween(before, now) {
  const seconds = before ? (now.at - before.at) / 1000 : 0;
  return {...now, rate: seconds > 0 ? Math.max(0, now.drawn - before.drawn) / seconds : 0};
}

// The document.

function start() {
  const $ = id => document.getElementById(id);
  const kSeconds = 120;  // of the load
  const kExamples = {
    chat: ["Explain why the sky is blue in two sentences.", "Write a short poem about a river.",
      "Give me three names for a cat."],
    completion: ["The river", "Once upon a time", "The capital of France is"],
  };
  let mode = "chat";
  let talk = {id: Date.now(), messages: []};  // the messages {role, text} of the conversation
  let running = null;                         // the controller of the request
  let store = null;
  try { store = window.localStorage; } catch { /* the browser keeps nothing */ }

  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  const say = (text, isBad = false) => {
    $("status").textContent = text;
    $("status").classList.toggle("bad", isBad);
  };
  const headers = () => ({"Content-Type": "application/json",
    ...($("api_key").value && {Authorization: "Bearer " + $("api_key").value})});
  function settings() {
    const all = {seed: $("seed").value, stop: $("stop").value, system: $("system").value};
    for (const name of kFields) all[name] = +$(name).value;
    return all;
  }

  // The history.

  const kept = () => historyOf(store?.getItem("megatron.history"));
  function keep(list) {
    try { store?.setItem("megatron.history", JSON.stringify(list)); } catch { /* there is no room */ }
    showHistory();
  }
  function showHistory() {
    const list = kept();
    $("clear").disabled = !list.length;
    $("list").replaceChildren(...list.map(one => {
      const row = element("li");
      const open = element("button", one.messages[0].text.trim().slice(0, 80) || "(empty)", "open");
      open.type = "button";
      open.title = `${one.mode}, ${new Date(one.id).toLocaleString()}`;
      open.addEventListener("click", () => {
        halt();
        setMode(one.mode);
        talk = {id: one.id, messages: one.messages};
        showTalk();
        $("prompt").focus();
      });
      const remove = element("button", "\u00d7");
      remove.type = "button";
      remove.setAttribute("aria-label", `Remove "${open.textContent}" from the history`);
      remove.addEventListener("click", () => keep(kept().filter(other => other.id !== one.id)));
      row.append(open, remove);
      return row;
    }));
  }

  // The conversation.

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {  // a page without encryption may not
      const area = element("textarea", text, "hidden");
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    say("copied");
  }

  // Shows a message; returns the place of its text.
  function addTurn(message) {
    const isModel = message.role === "assistant";
    const turn = element("article", undefined, "turn " + message.role);
    const head = element("h2", isModel ? "Model" : mode === "chat" ? "You" : "Prompt");
    const button = element("button", "Copy");
    button.type = "button";
    button.setAttribute("aria-label", isModel ? "Copy the text of the model" : "Copy your text");
    button.addEventListener("click", () => copy(message.text));
    head.append(button);
    const text = element("div", undefined, "text");
    turn.append(head, text);
    $("talk").append(turn);
    return text;
  }
  function showTalk() {
    closeTip();
    $("talk").replaceChildren();
    talk.messages.forEach(message => addTurn(message).append(message.text));
    $("again").disabled = running || !talk.messages.length;
    $("examples").hidden = talk.messages.length > 0;
    $("examples").replaceChildren(...kExamples[mode].map(text => {
      const button = element("button", text);
      button.type = "button";
      button.addEventListener("click", () => { $("prompt").value = text; ask(); });
      return button;
    }));
  }
  function setMode(wanted) {
    mode = wanted;
    const isChat = mode === "chat";
    document.querySelector(`#modes [value=${mode}]`).checked = true;
    $("asked").textContent = isChat ? "Message" : "Text to continue";
    $("prompt").placeholder = isChat ? "A message (Shift and Enter: a new line)" : "A text to continue (Control and Enter: generate)";
    $("go").textContent = isChat ? "Send" : "Generate";
    begin();
  }
  function begin() {
    halt();
    talk = {id: Date.now(), messages: []};
    say("");
    showTalk();
  }
  const halt = () => running?.abort();

  // A piece of text as a button: one of them is in the tab order, the arrow keys go to the others.
  function addPiece(place, piece, answer) {
    const begun = answer.text;
    answer.text += piece.text;
    if (!piece.text) return;
    if (!piece.tokens.length) { place.append(piece.text); return; }
    const span = element("span", piece.text, `token p${surprise(piece)}`);
    span.setAttribute("role", "button");
    span.tabIndex = place.querySelector(".token") ? -1 : 0;
    const open = () => showTip(span, piece, begun, answer);
    span.addEventListener("click", open);
    span.addEventListener("keydown", event => {
      const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(); }
      if (!step) return;
      event.preventDefault();
      const all = [...place.querySelectorAll(".token")];
      const next = all[all.indexOf(span) + step];
      if (!next) return;
      span.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
    place.append(span);
  }

  // The alternatives of a piece; a click on one draws the text anew behind it.
  function showTip(span, piece, begun, answer) {
    closeTip();
    span.classList.add("chosen");
    const rows = [];
    piece.tokens.forEach((token, k) => {
      rows.push(element("p", `${visible(token.text)}: ${token.value === null ? "\u2013" : percent(token.value)}`));
      for (const one of token.top) {
        const button = element("button");
        button.type = "button";
        const bar = element("span", undefined, "bar");
        const part = element("i");
        part.style.width = 100 * Math.exp(one.value) + "%";
        bar.append(part);
        const isDrawn = one.text === token.text;
        button.append(element("span", visible(one.text), isDrawn ? "part drawn" : "part"), bar, element("span", percent(one.value), "percent"));
        button.disabled = k > 0 || isDrawn || one.ends || running !== null || answer !== talk.messages.at(-1);
        button.addEventListener("click", () => {
          closeTip();
          talk.messages.pop();
          generate(begun + one.text);
        });
        rows.push(button);
      }
    });
    rows.push(element("p", "Choose an alternative to continue from it; Escape closes.", "note"));
    $("tip").replaceChildren(...rows);
    $("tip").hidden = false;
    const box = span.getClientRects()[0];
    const width = $("tip").offsetWidth;
    $("tip").style.left = scrollX + Math.max(8, Math.min(box.left, document.documentElement.clientWidth - width - 8)) + "px";
    $("tip").style.top = scrollY + box.bottom + 6 + "px";
    ($("tip").querySelector("button:enabled") ?? span).focus();
  }
  function closeTip() {
    const chosen = document.querySelector(".token.chosen");
    chosen?.classList.remove("chosen");
    if (chosen && $("tip").contains(document.activeElement)) chosen.focus();
    $("tip").hidden = true;
  }

  async function read(response, take) {
    const reader = response.body.getReader();
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      const found = eventsOf(rest + decoder.decode(value, {stream: true}));
      rest = found.rest;
      for (const text of found.events) {
        if (text === "[DONE]") continue;
        const chunk = JSON.parse(text);
        if (chunk.error) throw new Error(chunk.error.message);
        take(chunk);
      }
    }
  }

  // Draws the response to the last message; `begun` is its beginning.
  async function generate(begun = "") {
    const own = talk;
    const controller = running = new AbortController();
    const body = requestOf(mode, settings(), own.messages, begun);
    const answer = {role: "assistant", text: begun};
    own.messages.push(answer);
    showTalk();
    const place = $("talk").lastChild.querySelector(".text");
    place.replaceChildren();
    if (begun) place.append(element("span", begun, "asked"));
    $("talk").setAttribute("aria-busy", "true");
    $("go").disabled = true;
    $("halt").disabled = false;
    say("");
    const begin = performance.now();
    let count = 0;
    let reason = "";
    try {
      const response = await fetch(mode === "chat" ? "v1/chat/completions" : "v1/completions",
        {method: "POST", headers: headers(), body: JSON.stringify(body), signal: controller.signal});
      if (!response.ok) throw new Error((await response.json()).error.message);
      await read(response, chunk => {
        for (const choice of chunk.choices) {
          addPiece(place, pieceOf(choice), answer);
          reason = choice.finish_reason ?? reason;
        }
        count = chunk.usage?.completion_tokens ?? count;
        // Follows the text while its end is in sight.
        if (own === talk && innerHeight + scrollY > document.documentElement.scrollHeight - 120) scrollTo(0, document.documentElement.scrollHeight);
      });
      const seconds = (performance.now() - begin) / 1000;
      say(`${count} tokens in ${duration(seconds)}, ${(count / seconds).toFixed(1)} tokens/s`
        + (reason === "length" ? "; cut at the number of new tokens" : ""));
    } catch (error) {
      if (error.name === "AbortError") say("stopped"); else say(error.message, true);
      if (!answer.text) own.messages.pop();
    } finally {
      running = null;
      $("talk").setAttribute("aria-busy", "false");
      $("go").disabled = false;
      $("halt").disabled = true;
      $("again").disabled = !talk.messages.length;
      if (own.messages.length) keep(historyWith(kept(), {id: own.id, mode: body.messages ? "chat" : "completion", messages: own.messages}));
    }
  }

  function ask() {
    const text = $("prompt").value;
    if (running || !text && mode === "chat") return;
    if (mode === "completion") talk = {id: Date.now(), messages: []};
    // A message without a response is replaced.
    if (talk.messages.at(-1)?.role === "user") talk.messages.pop();
    talk.messages.push({role: "user", text});
    if (mode === "chat") $("prompt").value = "";
    generate();
  }

  // The load.

  const readings = [];
  async function readLoad() {
    if (!$("load").open || document.hidden) return;
    try {
      const response = await fetch("metrics", {headers: headers()});
      if (!response.ok) throw new Error((await response.json()).error.message);
      const text = await response.text();
      const now = {at: performance.now(), running: metricOf(text, "num_requests_running"),
        waiting: metricOf(text, "num_requests_waiting"), cache: metricOf(text, "kv_cache_usage_perc"),
        drawn: metricOf(text, "generation_tokens_total")};
      readings.push(loadBetween(readings.at(-1), now));
      while (readings.length && readings[0].at < now.at - kSeconds * 1000) readings.shift();
      const last = readings.at(-1);
      $("loaded").textContent = `${short(last.rate)} tokens/s, ${last.running} running, ${last.waiting} waiting, `
        + `${Math.round(100 * last.cache)} % of the cache used`;
      drawLoad();
    } catch (error) {
      $("loaded").textContent = "no metrics: " + error.message;
    }
  }
  function drawLoad() {
    drawChart($("rates"), "tokens per second of the last two minutes", [["--rate", "rate"]]);
    drawChart($("requests"), "requests of the last two minutes", [["--running", "running"], ["--waiting", "waiting"]]);
  }
  function drawChart(canvas, name, lines) {
    const width = canvas.clientWidth;
    if (!width || !readings.length) return;
    const height = canvas.clientHeight;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.setAttribute("aria-label", `${name}: now ${lines.map(line => `${short(readings.at(-1)[line[1]])} ${line[1]}`).join(", ")}`);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const box = {left: 40, right: 8, top: 8, bottom: 20};
    const most = Math.max(1, ...readings.flatMap(one => lines.map(line => one[line[1]])));
    const now = readings.at(-1).at;
    const px = seconds => width - box.right + seconds / kSeconds * (width - box.left - box.right);
    const py = value => height - box.bottom - value / (1.05 * most) * (height - box.top - box.bottom);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = style.getPropertyValue("--weak");
    pen.strokeStyle = style.getPropertyValue("--line");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const value of ticks(0, most, 4).filter(value => lines.length === 1 || Number.isInteger(value))) {
      pen.beginPath();
      pen.moveTo(box.left, py(value));
      pen.lineTo(width - box.right, py(value));
      pen.stroke();
      pen.fillText(short(value), box.left - 5, py(value));
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const seconds of [-120, -90, -60, -30, 0]) {
      const text = seconds ? `${seconds} s` : "now";
      pen.fillText(text, Math.min(px(seconds), width - pen.measureText(text).width / 2), height - box.bottom + 5);
    }
    pen.lineWidth = 1.5;
    for (const [colour, key] of lines) {
      pen.strokeStyle = style.getPropertyValue(colour);
      pen.beginPath();
      readings.forEach(one => pen.lineTo(px((one.at - now) / 1000), py(one[key])));
      pen.stroke();
    }
  }

  $("ask").addEventListener("submit", event => { event.preventDefault(); ask(); });
  $("prompt").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.isComposing || event.shiftKey) return;
    if (mode === "completion" && !event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    ask();
  });
  $("halt").addEventListener("click", halt);
  $("again").addEventListener("click", () => {
    if (talk.messages.at(-1)?.role === "assistant") talk.messages.pop();
    if (talk.messages.length) generate();
  });
  $("fresh").addEventListener("click", () => { begin(); $("prompt").focus(); });
  $("clear").addEventListener("click", () => { keep([]); $("past").querySelector("summary").focus(); });
  $("modes").addEventListener("change", event => setMode(event.target.value));
  const paint = () => {
    document.body.classList.toggle("coloured", $("colours").checked);
    $("key").hidden = !$("colours").checked;
  };
  $("colours").addEventListener("change", paint);
  document.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    if ($("tip").hidden) halt(); else closeTip();
  });
  document.addEventListener("pointerdown", event => {
    if (!$("tip").contains(event.target) && !event.target.classList.contains("token")) closeTip();
  });
  $("load").addEventListener("toggle", readLoad);
  new ResizeObserver(drawLoad).observe($("load"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawLoad);
  const name = () => fetch("v1/models", {headers: headers()}).then(response => response.json()).then(list => {
    document.title = $("title").textContent = list.data[0].id;
  }).catch(() => {});
  $("api_key").addEventListener("change", name);
  if (matchMedia("(min-width: 60rem)").matches) {
    for (const part of ["settings", "past", "load"]) $(part).open = true;
  }
  setMode("chat");
  showHistory();
  paint();
  name();
  setInterval(readLoad, 1000);
}

if (typeof document !== "undefined") start();
