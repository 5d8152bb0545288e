"use strict";

// Numbers of charts as texts and as marks of an axis.

// Round numbers from low to high, about `count` of them.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  if (!(raw > 0) || !isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= raw * 0.999);
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) all.push(i * step + 0);  // 0, not -0
  return all;
}

function logTicks(low, high) {
  if (high / low < 8) return ticks(low, high, 5);
  const from = Math.floor(Math.log10(low));
  const to = Math.ceil(Math.log10(high));
  const steps = to - from <= 2 ? [1, 2, 3, 5, 7] : to - from <= 4 ? [1, 2, 5] : [1];
  const stride = Math.max(1, Math.ceil((to - from) / 8));
  const all = [];
  for (let power = from; power <= to; power += stride) all.push(...steps.map(n => n * 10 ** power));
  const inside = all.filter(n => n >= low * 0.999 && n <= high * 1.001);
  return inside.length > 1 ? inside : [low, high];
}

// "1.5M", "0.00012"
function short(value) {
  if (value === null || value === undefined || !isFinite(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) return +(value / (name === "k" ? 1e3 : unit)).toPrecision(4) + name;
  }
  if (size > 0 && size < 1e-3) return (+value.toPrecision(4)).toExponential();
  return String(+value.toPrecision(5));
}

function duration(seconds) {
  if (seconds === null || !isFinite(seconds)) return "–";
  if (seconds < 60) return +seconds.toPrecision(3) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + "m" + String(Math.floor(seconds % 60)).padStart(2, "0") + "s";
  return Math.floor(seconds / 3600) + "h" + String(Math.floor(seconds / 60 % 60)).padStart(2, "0") + "m";
}
