// Time and steps to pixels: a scale whose quiet stretches can be folded, ticks, and labels that never cover each other.

import { textWidth } from "./words.js";

export const FOLD_PX = 30;
const QUIET_SECONDS = 1200;
const QUIET_SHARE = 0.4;

/** A function from values to pixels; each fold takes only `foldPx`. */
export function scale(from, to, start, end, folds = [], foldPx = FOLD_PX) {
  const quiet = folds.reduce((sum, [a, b]) => sum + b - a, 0);
  const sign = Math.sign(end - start) || 1;
  const perUnit = (Math.abs(end - start) - foldPx * folds.length) / Math.max(1e-9, to - from - quiet);
  const parts = [];
  let value = from;
  let pixel = 0;
  for (const [a, b] of folds) {
    parts.push([value, a, pixel, perUnit]);
    pixel += (a - value) * perUnit;
    parts.push([a, b, pixel, foldPx / (b - a)]);
    pixel += foldPx;
    value = b;
  }
  parts.push([value, to, pixel, perUnit]);
  return (wanted) => {
    const at = Math.min(Math.max(wanted, from), to);
    const part = parts.find(([, b]) => at <= b) ?? parts[parts.length - 1];
    return start + sign * (part[2] + (at - part[0]) * part[3]);
  };
}

/** The stretch in which one run only trains, if it is so long that everything else would be crowded out. */
export function quietStretch(runs, from, to) {
  const whole = to - from;
  const events = runs.flatMap((run) => [
    ...run.phases.filter((phase) => phase.kind !== "train").flatMap((phase) => [phase.start, phase.end]),
    ...(run.fault ? [run.fault.at] : []),
    ...(run.passed ? [run.passed.at] : []),
  ]);
  for (const run of runs)
    for (const phase of run.phases) {
      if (phase.kind !== "train") continue;
      const inside = events.filter((at) => at > phase.start && at < phase.end).sort((a, b) => a - b);
      const edges = [phase.start, ...inside, phase.end];
      for (let n = 1; n < edges.length; n++) {
        const [a, b] = [edges[n - 1] + 0.05 * whole, edges[n] - 0.1 * whole];
        if (b - a > QUIET_SECONDS && b - a > QUIET_SHARE * whole) return [[a, b]];
      }
    }
  return [];
}

const UNITS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 432000, 864000, 2592000];
export const timeUnit = (seconds, pixels, least = 70) =>
  UNITS.find((size) => (pixels * size) / Math.max(1, seconds) >= least) ?? UNITS[UNITS.length - 1];

export function ticksOf(from, to, unit) {
  const ticks = [];
  for (let at = Math.ceil(from / unit) * unit; at < to; at += unit) ticks.push(at);
  return ticks;
}

export function stepTicks(from, to, count = 4) {
  const raw = Math.max(1, (to - from) / count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const unit = Math.max(1, [1, 2, 5, 10].find((factor) => factor * power >= raw) * power);
  const ticks = [];
  for (let at = Math.ceil(from / unit) * unit; at <= to; at += unit) ticks.push(at);
  return ticks;
}

/** Where the axis of steps begins: at 0, unless all steps are far above it. */
export function lowestStep(seen) {
  const [low, high] = [Math.min(...seen), Math.max(...seen)];
  return seen.length > 1 && low > 0.5 * high && high > low ? low : 0;
}

/** Keeps the places that are taken; `put` says whether a label fits there, and takes the place. */
export class Places {
  constructor() {
    this.taken = [];
  }
  take(x, y, width, height) {
    this.taken.push([x, y, width, height]);
  }
  put(text, x, y, { anchor = "start", font = "12px Inter, sans-serif", height = 14, left = 0, right = Infinity } = {}) {
    const width = textWidth(text, font);
    const start = anchor === "end" ? x - width : anchor === "middle" ? x - width / 2 : x;
    const box = [start - 2, y - height + 2, width + 4, height];
    if (box[0] < left || box[0] + box[2] > right) return false;
    const free = this.taken.every(([a, b, w, hgt]) => box[0] + box[2] <= a || a + w <= box[0] || box[1] + box[3] <= b || b + hgt <= box[1]);
    if (free) this.taken.push(box);
    return free;
  }
}

/** From the chain's first moment to now, or to its end. */
export const spanOf = (view) => {
  const starts = view.runs.flatMap((run) => [run.started, ...run.phases.map((phase) => phase.start)]);
  const ends = view.runs.flatMap((run) => [run.ended ?? run.started, ...run.phases.map((phase) => phase.end), ...run.points.map(([at]) => at)]);
  const from = Math.min(...starts);
  return [from, Math.max(from + 1, view.live ? view.now : Math.max(...ends))];
};
