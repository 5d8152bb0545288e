// Numbers of the charts, without the document.

// The running sums of a list of differences.
function summed(differences) {
  let sum = 0;
  return differences.map(difference => sum += difference);
}

// y at x of a line through points with increasing x; null outside.
function interpolated(xs, ys, x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  const right = Math.max(1, firstAtLeast(xs, x));
  if (xs.length === 1 || ys[right] === null || ys[right - 1] === null) return xs.length === 1 ? ys[0] : null;
  return ys[right - 1] + (ys[right] - ys[right - 1]) * (x - xs[right - 1]) / (xs[right] - xs[right - 1]);
}

// The first index whose x is at least the given one.
function firstAtLeast(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = low + high >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low;
}

// The index of the nearest x that is not null; -1 if there is none.
function nearest(xs, x) {
  let best = -1;
  for (let i = 0; i < xs.length; ++i) {
    if (xs[i] !== null && (best < 0 || Math.abs(xs[i] - x) < Math.abs(xs[best] - x))) best = i;
  }
  return best;
}

// Exponential moving average, corrected for its start (Kingma & Ba 2015, sec. 3).
function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let total = 0;
  return values.map(value => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}

function bytes(value) {
  if (value === undefined) return "–";
  return value >= 2 ** 30 ? +(value / 2 ** 30).toPrecision(4) + " GiB" : +(value / 2 ** 20).toPrecision(4) + " MiB";
}

// The colour of a load: 1 is an even share; blue below, orange above, full at a quarter and at four times.
function loadColour(load) {
  const strength = Math.max(-1, Math.min(1, Math.log2(Math.max(load, 1e-6)) / 2));
  return `hsl(${strength < 0 ? 210 : 28} ${Math.round(15 + 70 * Math.abs(strength))}% ${Math.round(82 - 36 * Math.abs(strength))}%)`;
}

const kTitles = {
  grad_norm: "gradient norm", learning_rate: "learning rate", tokens_per_second: "tokens per second",
  "mem-reserved-bytes": "reserved memory, bytes", "mem-allocated-bytes": "allocated memory, bytes",
  "mem-max-allocated-bytes": "peak of the allocated memory, bytes",
  mfu_percent: "MFU, %", hfu_percent: "HFU, %", tflops_per_gpu: "TFLOP/s per GPU",
  elapsed_ms_per_iteration: "ms per iteration", global_batch_size: "global batch size", loss_scale: "loss scale",
  params_norm: "norm of the parameters", num_zeros: "zeros in the gradient",
  skipped_iterations: "skipped iterations", nan_iterations: "iterations with NaN",
};
// Numbers of the x axis: no chart.
const kProgress = ["consumed_train_samples", "consumed_train_tokens", "wall_time"];
const titleOf = name => kTitles[name] || name;

// Where a chart stands: losses, evaluations, the known numbers, all others.
function rank(name) {
  if (/validation|test/.test(name)) return /ppl/i.test(name) ? 2 : 1;
  if (/loss/.test(name) && name !== "loss_scale" && !/^moe\//.test(name)) return 0;
  const known = Object.keys(kTitles).indexOf(name);
  return known >= 0 ? 3 + known / 100 : 4;
}

// The names of all series in the order of their charts.
function seriesNames(runs) {
  const names = new Set(runs.flatMap(run => Object.keys(run.series)));
  return [...names].filter(name => !kProgress.includes(name)).sort((a, b) => rank(a) - rank(b));
}

// The series that have a chart.
function chartNames(runs) {
  const all = seriesNames(runs);
  // These are worth a chart only if they change.
  const plain = {skipped_iterations: 0, nan_iterations: 0, loss_scale: null, global_batch_size: null,
    tflops_per_gpu: 0};
  const varies = name => {
    const found = runs.map(run => run.series[name]).filter(series => series);
    const usual = plain[name] ?? found[0].max;
    return found.some(series => series.min !== usual || series.max !== usual);
  };
  // One value is no curve: the tables have it.
  const isCurve = name => runs.some(run => run.series[name] && run.series[name].n > 1);
  const only = !all.some(isCurve);
  return all.filter(name => (only || isCurve(name)) && (!(name in plain) || varies(name)));
}

// Decodes a run: absolute iterations, and a function from an iteration to each axis.
function unpack(run) {
  run.progress.i = summed(run.progress.i);
  run.place = (axis, iteration) =>
    axis === "iteration" ? iteration : interpolated(run.progress.i, run.progress[axis], iteration);
  run.has = axis => axis === "iteration" || run.progress[axis].some(value => value !== null);
  run.final = axis => run.progress[axis].findLast(value => value !== null) ?? null;
  for (const series of Object.values(run.series)) series.i = summed(series.i);
  run.last = Math.max(0, ...Object.values(run.series).map(series => series.i[series.i.length - 1]));
  run.shown = true;
  return run;
}

// Adds to a run what came later; points that it has are left out. Both are unpacked. The number of new points.
function extend(run, more) {
  let count = 0;
  for (const [name, series] of Object.entries(more.series)) {
    const own = run.series[name] ??= {n: 0, bad: 0, min: null, minAt: 0, max: null, mean: null, last: null, i: [], v: []};
    series.i.forEach((iteration, k) => {
      const value = series.v[k];
      if (own.i.length && iteration <= own.i.at(-1)) return;
      own.i.push(iteration);
      own.v.push(value);
      own.last = value;
      ++own.n;
      ++count;
      if (value === null) { ++own.bad; return; }
      if (own.min === null || value < own.min) { own.min = value; own.minAt = iteration; }
      if (own.max === null || value > own.max) own.max = value;
      own.mean = (own.mean ?? 0) + (value - (own.mean ?? 0)) / (own.n - own.bad);
    });
  }
  const end = run.progress.i.at(-1) ?? -1;
  more.progress.i.forEach((iteration, k) => {
    if (iteration > end) Object.keys(run.progress).forEach(key => run.progress[key].push(more.progress[key][k]));
  });
  run.last = Math.max(run.last, more.last);
  for (const part of ["experts", "pipeline"]) run[part] = more[part] ?? run[part];
  return count;
}

// "iteration 350 of 500, about 3m10s left"
function positionOf(run) {
  const whole = +run.settings.train_iters;
  if (!(whole > 0)) return `iteration ${run.last}`;
  const times = (run.series.elapsed_ms_per_iteration?.v ?? []).slice(-10);
  const ms = times.reduce((sum, time) => sum + time, 0) / times.length;
  const left = whole > run.last && times.length ? `, about ${duration((whole - run.last) * ms / 1000)} left` : "";
  return `iteration ${run.last} of ${whole}${left}`;
}

// The document.

function start() {
  const $ = id => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const runs = data.runs.map(unpack);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const state = {axis: "iteration", log: false, smooth: 0, range: null};

  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (name) made.className = name;
    return made;
  };
  // Distinct hues for any number of runs: steps of the golden angle.
  const colour = i => `hsl(${(210 + i * 137.508) % 360} ${65 + 10 * (i % 3)}% ${dark.matches ? 64 : 40 + 4 * (i % 2)}%)`;
  const axisText = (axis, value) => axis === "seconds" ? duration(value) : short(value);

  // A chart of one number of all runs.
  function makeChart(name, place) {
    const section = element("section");
    const canvas = element("canvas", undefined, "chart");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${titleOf(name)} of the runs; the table below has its final values`);
    section.append(element("h2", titleOf(name)), canvas);
    place.append(section);
    const own = runs.map((run, i) => ({run, i, series: run.series[name]})).filter(entry => entry.series);
    const box = {left: 58, right: 8, top: 6, bottom: 22};
    let view = null;
    let cursor = null;
    let dragged = null;

    // The visible lines: x and y of each point, null for a gap.
    function lines() {
      return own.filter(({run}) => run.shown && run.has(state.axis)).map(({run, i, series}) => {
        const xs = series.i.map(iteration => run.place(state.axis, iteration));
        return {run, i, xs, raw: series.v, ys: smoothed(series.v, state.smooth)};
      });
    }

    function limits(all) {
      const limit = {x0: Infinity, x1: -Infinity, y0: Infinity, y1: -Infinity};
      for (const {xs, ys} of all) {
        for (let k = 0; k < xs.length; ++k) {
          if (xs[k] === null) continue;
          if (state.range && (xs[k] < state.range[0] || xs[k] > state.range[1])) continue;
          limit.x0 = Math.min(limit.x0, xs[k]);
          limit.x1 = Math.max(limit.x1, xs[k]);
          if (ys[k] === null || state.log && ys[k] <= 0) continue;
          limit.y0 = Math.min(limit.y0, ys[k]);
          limit.y1 = Math.max(limit.y1, ys[k]);
        }
      }
      if (state.range) [limit.x0, limit.x1] = state.range;
      if (limit.x0 === limit.x1) { limit.x0 -= 0.5; limit.x1 += 0.5; }
      if (Math.abs(limit.y1 - limit.y0) <= 1e-9 * Math.abs(limit.y1)) {  // smoothing rounds
        const half = Math.abs(limit.y0) / 10 || 1;
        limit.y1 += half;
        limit.y0 -= state.log ? Math.min(half, limit.y0 / 2) : half;
      }
      return limit;
    }

    function draw() {
      const width = canvas.clientWidth;
      if (!width) return;  // in details that are closed
      const height = canvas.clientHeight;
      const scale = devicePixelRatio || 1;
      if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
      if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
      const pen = canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, height);
      const style = getComputedStyle(document.documentElement);
      pen.font = "11px system-ui, sans-serif";
      pen.fillStyle = style.getPropertyValue("--weak");
      const all = lines();
      const limit = limits(all);
      view = null;
      if (!(limit.x1 > limit.x0) || !(limit.y1 > limit.y0)) {
        pen.textAlign = "left";
        pen.fillText(all.length ? "no value to show here" : "no shown run has this number on this axis", box.left, 24);
        return;
      }
      const inner = {w: width - box.left - box.right, h: height - box.top - box.bottom};
      const bent = state.log ? Math.log : value => value;
      const low = bent(limit.y0);
      const high = bent(limit.y1);
      const margin = (high - low) * 0.04;
      const px = x => box.left + (x - limit.x0) / (limit.x1 - limit.x0) * inner.w;
      const py = y => box.top + (high + margin - bent(y)) / (high - low + 2 * margin) * inner.h;
      view = {all, px, py, limit, inner};
      pen.strokeStyle = style.getPropertyValue("--line");
      pen.lineWidth = 1;
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      for (const y of state.log ? logTicks(limit.y0, limit.y1) : ticks(limit.y0, limit.y1, 5)) {
        pen.beginPath();
        pen.moveTo(box.left, py(y));
        pen.lineTo(width - box.right, py(y));
        pen.stroke();
        pen.fillText(short(y), box.left - 5, py(y));
      }
      pen.textBaseline = "top";
      pen.textAlign = "center";
      for (const x of ticks(limit.x0, limit.x1, inner.w / 65)) {
        const text = axisText(state.axis, x);
        const half = pen.measureText(text).width / 2;
        pen.fillText(text, Math.min(px(x), width - half), height - box.bottom + 6);
      }
      pen.save();
      pen.beginPath();
      pen.rect(box.left, 0, inner.w, height - box.bottom + 2);
      pen.clip();
      pen.lineJoin = "round";
      pen.lineWidth = all.length > 20 ? 1 : 1.5;
      for (const {i, xs, ys, raw} of all) {
        pen.strokeStyle = pen.fillStyle = colour(i);
        if (state.smooth) {
          pen.globalAlpha = 0.2;
          trace(pen, xs, raw, px, py);
          pen.globalAlpha = 1;
        }
        trace(pen, xs, ys, px, py);
      }
      pen.restore();
      if (dragged) {
        pen.fillStyle = style.getPropertyValue("--line");
        pen.fillRect(Math.min(dragged.from, dragged.to), box.top, Math.abs(dragged.to - dragged.from), inner.h);
      } else if (cursor) {
        pen.strokeStyle = style.getPropertyValue("--weak");
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(cursor.x, box.top);
        pen.lineTo(cursor.x, height - box.bottom);
        pen.stroke();
      }
    }

    function trace(pen, xs, ys, px, py) {
      pen.beginPath();
      let open = false;
      let count = 0;
      for (let k = 0; k < xs.length; ++k) {
        if (xs[k] === null || ys[k] === null || state.log && ys[k] <= 0) { open = false; continue; }
        if (open) pen.lineTo(px(xs[k]), py(ys[k])); else pen.moveTo(px(xs[k]), py(ys[k]));
        open = true;
        ++count;
      }
      pen.stroke();
      if (count > 40) return;
      for (let k = 0; k < xs.length; ++k) {
        if (xs[k] === null || ys[k] === null || state.log && ys[k] <= 0) continue;
        pen.beginPath();
        pen.arc(px(xs[k]), py(ys[k]), 2, 0, 7);
        pen.fill();
      }
    }

    // The values at the cursor, those nearest to it first.
    function showTip(event) {
      const rect = canvas.getBoundingClientRect();
      const x = event.clientX - rect.left;
      const y = event.clientY - rect.top;
      cursor = null;
      $("tip").hidden = true;
      if (!view || x < box.left - 2 || x > box.left + view.inner.w + 2) return;
      cursor = {x};
      const value = view.limit.x0 + (x - box.left) / view.inner.w * (view.limit.x1 - view.limit.x0);
      const found = [];
      for (const {run, i, xs, ys} of view.all) {
        const k = nearest(xs, value);
        if (k < 0 || ys[k] === null || Math.abs(view.px(xs[k]) - x) > 40) continue;
        found.push({run, i, x: xs[k], y: ys[k], distance: Math.abs(view.py(ys[k]) - y)});
      }
      if (!found.length) return;
      found.sort((a, b) => a.distance - b.distance);
      const most = 10;
      const rows = [element("div", `${state.axis === "seconds" ? "time" : state.axis} ${axisText(state.axis, found[0].x)}`)];
      for (const {run, i, y: own} of found.slice(0, most)) {
        const row = element("div");
        const swatch = element("span", undefined, "swatch");
        swatch.style.background = colour(i);
        row.append(swatch, element("span", run.name), element("b", short(own)));
        rows.push(row);
      }
      if (found.length > most) rows.push(element("div", `and ${found.length - most} more`));
      $("tip").replaceChildren(...rows);
      $("tip").hidden = false;
      const tip = $("tip").getBoundingClientRect();
      const left = event.clientX + 14 + tip.width < innerWidth ? event.clientX + 14 : event.clientX - 14 - tip.width;
      $("tip").style.left = Math.max(4, left) + "px";
      $("tip").style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.height - 4)) + "px";
    }

    canvas.addEventListener("pointerdown", event => {
      if (event.pointerType === "mouse" && event.button === 0 && view) {
        dragged = {from: event.offsetX, to: event.offsetX};
        canvas.setPointerCapture(event.pointerId);
      }
    });
    canvas.addEventListener("pointermove", event => {
      if (dragged) dragged.to = event.offsetX;
      showTip(event);
      draw();
    });
    canvas.addEventListener("pointerup", () => {
      const marked = dragged;
      dragged = null;
      if (marked && view && Math.abs(marked.to - marked.from) > 5) {
        const at = x => view.limit.x0 + (x - box.left) / view.inner.w * (view.limit.x1 - view.limit.x0);
        state.range = [at(Math.min(marked.from, marked.to)), at(Math.max(marked.from, marked.to))];
        $("whole").disabled = false;
        drawAll();
      }
    });
    canvas.addEventListener("pointerleave", () => {
      cursor = dragged = null;
      $("tip").hidden = true;
      draw();
    });
    return draw;
  }

  function table(title, note, heads, rows) {
    const section = element("section");
    const scroll = element("div", undefined, "scroll");
    const whole = element("table");
    const head = element("tr");
    heads.forEach(text => head.append(element("th", text)));
    whole.append(element("thead"));
    whole.firstChild.append(head);
    const body = element("tbody");
    for (const cells of rows) {
      const row = element("tr");
      cells.forEach((cell, k) => {
        const made = element(k === 0 ? "th" : "td", cell);
        made.title = cell;
        row.append(made);
      });
      body.append(row);
    }
    whole.append(body);
    scroll.append(whole);
    section.append(element("h2", title));
    if (note) section.append(element("p", note, "note"));
    section.append(scroll);
    $("tables").append(section);
    return section;
  }

  let names = [];  // of all series

  function finalValues() {
    if (!names.length) return;
    const columns = [
      ["iterations", run => short(run.last)],
      ["samples", run => short(run.final("samples"))],
      ["tokens", run => short(run.final("tokens"))],
      ["time", run => duration(run.final("seconds"))],
    ];
    const add = (head, name, key) => columns.push([head, run => run.series[name] ? short(run.series[name][key]) : "–"]);
    for (const name of names) {
      if (rank(name) === 0) {
        add(titleOf(name), name, "last");
        add("least " + titleOf(name), name, "min");
      } else if (/^(tokens_per_second|mfu_percent|tflops_per_gpu)$/.test(name)) {
        add("mean " + titleOf(name), name, "mean");
      } else if (/^(grad_norm|learning_rate)$/.test(name)) {
        add(titleOf(name), name, "last");
      }
    }
    columns.push(["not finite", run => String(Object.values(run.series).reduce((sum, series) => sum + series.bad, 0))]);
    columns.push(["restarts", run => String(run.restarts)]);
    table("Final values", "The last value of each run, from all points of its log.",
      ["run", ...columns.map(column => column[0])],
      runs.map(run => [run.name, ...columns.map(column => column[1](run))]));
  }

  function evaluations() {
    const rows = [];
    for (const run of runs) {
      for (const name of names.filter(name => rank(name) === 1 && run.series[name])) {
        const series = run.series[name];
        const perplexity = run.series[name + " ppl"];
        rows.push([run.name, name, short(series.i[series.i.length - 1]), short(series.last),
          perplexity ? short(perplexity.last) : "–", short(series.min), short(series.minAt)]);
      }
    }
    if (rows.length) {
      table("Evaluations", "", ["run", "evaluation", "iteration", "loss", "perplexity", "least loss", "at iteration"], rows);
    }
    const tasks = [...new Set(runs.flatMap(run => Object.keys(run.results)))];
    for (const task of tasks) {
      const heads = [...new Set(runs.flatMap(run => Object.keys(run.results[task] ?? {})))];
      table(task, "", ["run", ...heads], runs.filter(run => run.results[task])
        .map(run => [run.name, ...heads.map(head => short(run.results[task][head]))]));
    }
  }

  function memory() {
    const planned = runs.filter(run => Object.keys(run.plannedMemory).length);
    const measured = runs.filter(run => Object.keys(run.measuredMemory).length);
    const known = runs.filter(run => planned.includes(run) || measured.includes(run));
    if (!known.length) return;
    const kinds = [...new Set(planned.flatMap(run => Object.keys(run.plannedMemory)))];
    const counts = [...new Set(measured.flatMap(run => Object.keys(run.measuredMemory)))];
    const total = run => Object.values(run.plannedMemory).reduce((sum, value) => sum + value, 0);
    const section = table("Memory of a rank", "Planned at the peak, by category, and measured by the allocator on rank 0.",
      ["run", ...kinds, ...(kinds.length ? ["planned in all"] : []), ...counts],
      known.map(run => [run.name, ...kinds.map(kind => bytes(run.plannedMemory[kind])),
        ...(kinds.length ? [planned.includes(run) ? bytes(total(run)) : "–"] : []),
        ...counts.map(count => bytes(run.measuredMemory[count]))]));
    const most = Math.max(...planned.map(total));
    for (const run of planned.slice(0, 20)) {
      const bar = element("div", undefined, "bar");
      bar.append(element("span", run.name));
      kinds.forEach((kind, k) => {
        const part = element("i");
        part.style.width = 75 * (run.plannedMemory[kind] ?? 0) / most + "%";
        part.style.background = colour(k);
        part.title = `${kind} ${bytes(run.plannedMemory[kind])}`;
        bar.append(part);
      });
      section.append(bar);
    }
    if (!planned.length) return;
    const key = element("p", undefined, "note key");
    kinds.forEach((kind, k) => {
      const swatch = element("span", undefined, "swatch");
      swatch.style.background = colour(k);
      key.append(swatch, kind);
    });
    section.append(key);
  }

  // A section that shows one of the runs which have `part`.
  function pictureOf(part, title, show) {
    const owners = runs.filter(run => run[part]);
    if (!owners.length) return;
    const section = element("section");
    const choice = element("select");
    choice.setAttribute("aria-label", "Run");
    owners.forEach((run, k) => choice.append(new Option(run.name, k)));
    const place = element("div");
    const update = () => place.replaceChildren(...show(owners[+choice.value]));
    choice.addEventListener("change", update);
    choice.value = "0";
    section.append(element("h2", title), choice, place);
    $("tables").append(section);
    update();
  }

  // A table of loads as a picture: a row for each layer.
  function heatmap(rows, layers, told) {
    const columns = rows[0].length;
    const canvas = element("canvas", undefined, "heat");
    const cell = 10;
    canvas.width = columns * cell;
    canvas.height = rows.length * cell;
    canvas.style.width = Math.min(900, columns * 22) + "px";
    canvas.style.height = Math.max(24, Math.min(480, rows.length * 18)) + "px";
    const pen = canvas.getContext("2d");
    rows.forEach((row, y) => row.forEach((load, x) => {
      pen.fillStyle = loadColour(load);
      pen.fillRect(x * cell, y * cell, cell, cell);
    }));
    canvas.addEventListener("pointermove", event => {
      const x = Math.min(columns - 1, Math.floor(event.offsetX / canvas.clientWidth * columns));
      const y = Math.min(rows.length - 1, Math.floor(event.offsetY / canvas.clientHeight * rows.length));
      if (x >= 0 && y >= 0 && x < rows[y].length) canvas.title = `layer ${layers[y]}, ${told(x)}: ${rows[y][x]}`;
    });
    return canvas;
  }

  function experts(run) {
    const own = run.experts;
    const iterations = summed(own.i);
    const all = [element("p", "Tokens of an expert as a multiple of its even share: grey is 1, orange is more, blue is less. Rows are layers.", "note"),
      element("h3", "largest load of a layer, over the iterations"),
      heatmap(own.most, own.layers, x => `to iteration ${short(iterations[x])}`)];
    if (own.last.length) {
      all.push(element("h3", "each expert, in the last tenth of the run"),
        heatmap(own.last, own.layers, x => `expert ${x}`));
    }
    return all;
  }

  function pipeline(run) {
    const {names: kinds, ranks, left} = run.pipeline;
    const end = Math.max(...ranks.flatMap(rank => rank.boxes.map(box => box[3] + box[4])));
    const begin = Math.min(...ranks.flatMap(rank => rank.boxes.map(box => box[3])));
    const svg = (tag, attributes, text) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
      if (text !== undefined) made.textContent = text;
      return made;
    };
    const height = ranks.length * 26;
    const picture = svg("svg", {viewBox: `0 0 1060 ${height + 20}`, class: "pipeline", role: "img"});
    const busy = [];
    ranks.forEach((rank, row) => {
      picture.append(svg("text", {x: 0, y: row * 26 + 16}, `rank ${rank.rank}`));
      picture.append(svg("rect", {x: 56, y: row * 26, width: 1000, height: 22, fill: "var(--raised)"}));
      busy.push(rank.boxes.reduce((sum, box) => sum + box[4], 0) / (end - begin));
      for (const [kind, microbatch, chunk, from, length] of rank.boxes) {
        const hue = kinds[kind] === "forward_step" ? 210 : kinds[kind] === "backward_step" ? 28 : 140;
        const box = svg("rect", {x: 56 + (from - begin) / (end - begin) * 1000, y: row * 26, width: Math.max(0.5, length / (end - begin) * 1000),
          height: 22, fill: `hsl(${hue} 55% ${Math.min(80, 46 + 12 * chunk)}%)`, stroke: "var(--back)", "stroke-width": 0.5});
        box.append(svg("title", {}, `${kinds[kind]} of microbatch ${microbatch}, chunk ${chunk}: ${short(length / 1000)} ms`));
        picture.append(box);
        if (length / (end - begin) > 0.012) {
          picture.append(svg("text", {x: 56 + (from + length / 2 - begin) / (end - begin) * 1000, y: row * 26 + 15,
            "text-anchor": "middle", fill: "#fff"}, microbatch));
        }
      }
    });
    picture.append(svg("text", {x: 1056, y: height + 14, "text-anchor": "end"}, short((end - begin) / 1000) + " ms"));
    const idle = busy.map((share, k) => `rank ${ranks[k].rank} ${Math.round(100 - 100 * share)} %`).slice(0, 16).join(", ");
    const wide = element("div", undefined, "scroll");
    wide.append(picture);
    return [element("p", "The last traced iteration: forward blue, backward orange, the number of the microbatch; lighter is a later chunk."
      + (left ? ` ${left} more ranks are left out.` : ""), "note"), wide, element("p", `Without work: ${idle}.`, "note")];
  }

  function settings() {
    const known = runs.filter(run => Object.keys(run.settings).length);
    if (!known.length) return;
    const keys = [...new Set(known.flatMap(run => Object.keys(run.settings)))].sort();
    const differ = keys.filter(key => known.some(run => run.settings[key] !== known[0].settings[key]));
    const shown = known.length > 1 ? differ : keys;
    if (!shown.length) return;
    const section = table(known.length > 1 ? "Settings that differ" : "Settings", "", ["setting", ...known.map(run => run.name)],
      shown.map(key => [key, ...known.map(run => run.settings[key] ?? "–")]));
    section.classList.add("texts");
  }

  let draws = [];
  let shown = "";  // the names of the charts
  const others = element("details", undefined, "wide");
  const place = element("div", undefined, "charts");
  others.append(element("summary"), place);
  others.addEventListener("toggle", showOthers);
  // Numbers that only this program knows are many: they wait in closed details.
  function showOthers() {
    if (!others.open) return;
    if (!place.hasChildNodes()) draws.push(...chartNames(runs).filter(name => rank(name) === 4).map(name => makeChart(name, place)));
    drawAll();
  }
  // Shows the runs as they are now. Charts stay as long as there are no others.
  function show() {
    names = seriesNames(runs);
    const charts = chartNames(runs);
    if (charts.join("\n") !== shown) {
      shown = charts.join("\n");
      $("charts").replaceChildren();
      place.replaceChildren();
      draws = charts.filter(name => rank(name) < 4).map(name => makeChart(name, $("charts")));
      const count = charts.filter(name => rank(name) === 4).length;
      others.firstChild.textContent = `${count} more numbers`;
      if (count) $("charts").after(others); else others.remove();
      showOthers();
    }
    for (const option of $("axis").options) option.disabled = !runs.some(run => run.has(option.value));
    $("tables").replaceChildren();
    finalValues();
    evaluations();
    memory();
    pictureOf("pipeline", "Pipeline", pipeline);
    pictureOf("experts", "Load of the experts", experts);
    settings();
    drawAll();
  }

  // Asks for new points again and again.
  async function follow(path) {
    let id = "";
    for (;;) {
      try {
        if (!document.hidden || !runs.length) {
          const query = runs.length ? `?id=${encodeURIComponent(id)}&after=${runs[0].last - 1}` : "";
          const response = await fetch(path + query, {cache: "no-store"});
          if (!response.ok) throw new Error(await response.text());
          const answer = await response.json();
          const more = unpack(answer.run);
          let isNew = true;
          if (answer.after < 0 || id !== answer.id) {
            runs.splice(0, 1, more);
            shown = "";
            $("runs").hidden = true;
          } else {
            isNew = extend(runs[0], more) > 0;
          }
          id = answer.id;
          if (isNew) show();
          $("live").textContent = `${positionOf(runs[0])}; asked at ${new Date().toLocaleTimeString()}`;
        }
      } catch (error) {
        $("live").textContent = runs.length ? `${positionOf(runs[0])}; the run has ended or cannot be reached` : error.message;
      }
      await new Promise(resolve => setTimeout(resolve, 2000));
    }
  }

  let waits = false;
  function drawAll() {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      draws.forEach(draw => draw());
    });
  }

  runs.forEach((run, i) => {
    const label = element("label");
    const box = element("input");
    box.type = "checkbox";
    box.checked = true;
    box.addEventListener("change", () => { run.shown = box.checked; drawAll(); });
    const swatch = element("span", undefined, "swatch");
    label.append(box, swatch, element("span", run.name));
    $("legend").append(label);
    run.show = shown => { run.shown = box.checked = shown; };
    run.paint = () => { swatch.style.background = colour(i); };
    run.paint();
  });
  const showThose = wanted => { runs.forEach(run => run.show(wanted(run))); drawAll(); };
  $("all").addEventListener("click", () => showThose(() => true));
  $("none").addEventListener("click", () => showThose(() => false));
  $("filter").addEventListener("input", () => showThose(run => run.name.includes($("filter").value)));
  $("controls").addEventListener("submit", event => event.preventDefault());
  const wholeRange = () => { state.range = null; $("whole").disabled = true; drawAll(); };
  $("axis").addEventListener("change", () => { state.axis = $("axis").value; wholeRange(); });
  $("log").addEventListener("change", () => { state.log = $("log").checked; drawAll(); });
  $("smooth").addEventListener("input", () => {
    state.smooth = +$("smooth").value;
    $("smoothness").textContent = $("smooth").value;
    drawAll();
  });
  $("whole").addEventListener("click", wholeRange);
  dark.addEventListener("change", () => { runs.forEach(run => run.paint()); drawAll(); });
  new ResizeObserver(drawAll).observe($("charts"));
  if (data.live) {
    $("live").hidden = false;
    follow(data.live);
  } else {
    show();
  }
}

if (typeof document !== "undefined") start();
