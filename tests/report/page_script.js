// node page_script.js FOLDER: checks the functions of the page's script that need no document.
"use strict";
const assert = require("node:assert");
const {readFileSync} = require("node:fs");
const names = ["summed", "interpolated", "nearest", "smoothed", "ticks", "logTicks", "short", "duration", "bytes",
  "rank", "chartNames", "unpack", "extend", "positionOf"];
const script = ["numbers.js", "page.js"].map(file => readFileSync(`${process.argv[2]}/${file}`, "utf8")).join("\n");
const page = new Function(`${script}\nreturn {${names.join(", ")}};`)();

assert.deepStrictEqual(page.summed([10, 10, 20]), [10, 20, 40]);
assert.strictEqual(page.interpolated([10, 20], [1, 3], 15), 2);
assert.strictEqual(page.interpolated([10, 20], [1, 3], 10), 1);
assert.strictEqual(page.interpolated([10, 20], [1, 3], 20), 3);
assert.strictEqual(page.interpolated([10, 20], [1, 3], 21), null);
assert.strictEqual(page.interpolated([10, 20], [1, null], 15), null);
assert.strictEqual(page.interpolated([], [], 15), null);
assert.strictEqual(page.nearest([1, 5, null, 9], 6.9), 1);
assert.strictEqual(page.nearest([null], 1), -1);
assert.deepStrictEqual(page.smoothed([4, 2], 0), [4, 2]);
assert.deepStrictEqual(page.smoothed([4, null, 2], 0.5), [4, null, 8 / 3]);
assert.deepStrictEqual(page.ticks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
assert.deepStrictEqual(page.ticks(3, 3, 5), [3]);
assert.deepStrictEqual(page.logTicks(1, 1000), [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]);
assert.deepStrictEqual(page.logTicks(4, 6), [4, 4.5, 5, 5.5, 6]);
assert.strictEqual(page.short(1234567), "1.235M");
assert.strictEqual(page.short(0.00025), "2.5e-4");
assert.strictEqual(page.short(null), "–");
assert.strictEqual(page.duration(7265), "2h01m");
assert.strictEqual(page.bytes(3 * 2 ** 29), "1.5 GiB");

const series = (...v) => ({n: v.length, i: v.map(() => 1), v, min: Math.min(...v), max: Math.max(...v)});
const run = page.unpack({
  progress: {i: [1, 1], samples: [8, 16], tokens: [null, null], seconds: [2, 4]},
  series: {loss_scale: series(1, 1), grad_norm: series(1, 2), "lm loss validation": series(2, 1),
    "lm loss": series(3, 2), skipped_iterations: series(0, 1), consumed_train_samples: series(8, 16),
    "lm loss test": series(2), "moe/z_loss_layer_0": series(1, 2)},
});
assert.deepStrictEqual(page.chartNames([run]),
  ["lm loss", "lm loss validation", "grad_norm", "skipped_iterations", "moe/z_loss_layer_0"]);
assert.strictEqual(run.last, 2);
assert.strictEqual(run.place("seconds", 1.5), 3);
assert.strictEqual(run.has("tokens"), false);
assert.strictEqual(run.final("samples"), 16);

// A run that goes on: points that it has are left out.
const whole = page.unpack({name: "a", settings: {train_iters: "50"},
  progress: {i: [10, 10], samples: [8, 16], tokens: [null, null], seconds: [2, 4]},
  series: {"lm loss": {n: 2, bad: 0, min: 2, minAt: 20, max: 4, mean: 3, last: 2, i: [10, 10], v: [4, 2]},
    elapsed_ms_per_iteration: {n: 2, bad: 0, min: 200, minAt: 10, max: 200, mean: 200, last: 200, i: [10, 10], v: [200, 200]}}});
const later = page.unpack({name: "a", settings: {train_iters: "50"},
  progress: {i: [20, 20], samples: [16, 32], tokens: [null, null], seconds: [4, 8]},
  series: {"lm loss": {i: [20, 10, 10], v: [2, null, 1]}, "lm loss validation": {i: [20], v: [5]}}});
assert.strictEqual(page.extend(whole, later), 3);
assert.strictEqual(page.extend(whole, later), 0);
assert.deepStrictEqual(whole.series["lm loss"], {n: 4, bad: 1, min: 1, minAt: 40, max: 4, mean: 7 / 3, last: 1,
  i: [10, 20, 30, 40], v: [4, 2, null, 1]});
assert.deepStrictEqual(whole.series["lm loss validation"].v, [5]);
assert.deepStrictEqual(whole.progress.i, [10, 20, 40]);
assert.strictEqual(whole.place("seconds", 30), 6);
assert.strictEqual(page.positionOf(whole), "iteration 40 of 50, about 2 s left");
