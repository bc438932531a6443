// Many runs in one picture: one strip of all of them, a row for each class and for the nodes with most faults, the curve.

import { h } from "./host.js";
import { Shape, Words } from "./signs.js";
import { lowestStep, scale, spanOf, stepTicks, ticksOf, timeUnit } from "./scale.js";
import { clock, day, minute, number, steps } from "./words.js";

export const MOST_LANES = 12;
const ROW = 18;

export function CrowdChart({ view, width }) {
  const narrow = width < 520;
  const left = narrow ? 108 : 138;
  const right = width - 10;
  const [from, to] = spanOf(view);
  const x = scale(from, to, left, right);
  const faulty = view.runs.filter((run) => run.fault);
  const nodes = view.nodes.slice(0, 3);
  const strip = 8;
  const classTop = strip + 38;
  const nodeTop = classTop + view.classes.length * ROW + (nodes.length ? 16 : 0);
  const curveTop = nodeTop + nodes.length * ROW + 20;
  const bottom = curveTop + 96;
  const seen = view.runs.flatMap((run) => run.points.map(([, step]) => step));
  const highest = Math.max(1, ...seen);
  const lowest = lowestStep(seen);
  const y = scale(lowest, highest, bottom, curveTop);
  const unit = timeUnit(to - from, right - left, 90);
  const word = (at) => (unit >= 86400 ? day(at) : unit < 60 ? clock(at) : minute(at));
  const label = (text, count, top) => [
    h(Words, { key: "t", x: 18, y: top + 4, fontSize: 12, fill: "var(--fg)" }, text.length > 13 ? `${text.slice(0, 12)}…` : text),
    h(Words, { key: "n", x: left - 8, y: top + 4, fontSize: 12, fontWeight: 600, textAnchor: "end", fill: "var(--fg)" }, number(count)),
  ];
  const words = `${view.total_runs} runs. ${view.classes.map((one) => `${one.name}: ${one.faults}`).join(", ")}. ${nodes.map((one) => `on ${one.name}: ${one.faults}`).join(", ")}`;
  return h(
    "div",
    { className: "chart", role: "img", "aria-label": words },
    h(
      "svg",
      { width, height: bottom + 24, viewBox: `0 0 ${width} ${bottom + 24}` },
      view.bursts.map((burst) => h("rect", { key: burst.start, x: x(burst.start) - 3, y: strip - 4, width: x(burst.end) - x(burst.start) + 6, height: bottom - strip + 4, fill: "var(--lost)" })),
      ticksOf(from, to, unit).map((at) =>
        right - x(at) < 40
          ? null
          : h("g", { key: at }, h("line", { x1: x(at), x2: x(at), y1: strip - 4, y2: bottom, stroke: "var(--border)" }), h(Words, { x: x(at), y: bottom + 16, fontSize: 11, textAnchor: "middle", fill: "var(--fg-muted)" }, word(at))),
      ),
      h(Words, { x: right, y: bottom + 16, fontSize: 11, fontWeight: 600, textAnchor: "end", fill: "var(--fg)" }, view.live ? "now" : "end"),
      h(Words, { x: 0, y: strip + 11, fontSize: 12, fontWeight: 600, fill: "var(--fg)" }, `${number(view.total_runs)} runs`),
      view.runs.map((run) => {
        const end = run.ended ?? (run.live ? to : run.started);
        return h("rect", { key: run.id, x: x(run.started), y: strip, width: Math.max(1, x(end) - x(run.started) - 0.5), height: 14, fill: "var(--again)" });
      }),
      view.runs.flatMap((run) =>
        run.phases.filter((phase) => phase.kind === "train" || phase.kind === "again").map((phase) => h("rect", { key: `${run.id}${phase.start}${phase.kind}`, x: x(phase.start), y: strip, width: Math.max(0.8, x(phase.end) - x(phase.start)), height: 14, fill: "var(--train)" })),
      ),
      h(Words, { x: 0, y: classTop - 10, fontSize: 11, fontWeight: 600, fill: "var(--fg-muted)" }, "ended by"),
      view.classes.map((one, n) => {
        const top = classTop + n * ROW + 4;
        return h(
          "g",
          { key: one.name },
          h(Shape, { kind: one.name, x: 7, y: top, r: 5 }),
          label(one.name, one.faults, top),
          h("line", { x1: left, x2: right, y1: top, y2: top, stroke: "var(--border)" }),
          faulty.filter((run) => run.fault.fault_class === one.name).map((run) => h("rect", { key: run.id, x: x(run.fault.at) - 1, y: top - 6, width: 2, height: 12, fill: `var(--c-${one.name}, var(--c-UNKNOWN))` })),
        );
      }),
      nodes.length > 0 && h(Words, { x: 0, y: nodeTop - 8, fontSize: 11, fontWeight: 600, fill: "var(--fg-muted)" }, "most faults on"),
      nodes.map((one, n) => {
        const top = nodeTop + n * ROW + 5;
        return h(
          "g",
          { key: one.name },
          label(one.name, one.faults, top),
          h("line", { x1: left, x2: right, y1: top, y2: top, stroke: "var(--border)" }),
          faulty.filter((run) => run.fault.node === one.name).map((run) => h(Shape, { key: run.id, kind: run.fault.fault_class, x: x(run.fault.at), y: top, r: 4.5 })),
        );
      }),
      h("line", { x1: 0, x2: right, y1: curveTop - 12, y2: curveTop - 12, stroke: "var(--border-strong)" }),
      h(Words, { x: 0, y: curveTop + 4, fontSize: 11, fontWeight: 600, fill: "var(--fg-muted)" }, "step"),
      stepTicks(lowest, highest, 3).map((step) =>
        h("g", { key: step }, h("line", { x1: left, x2: right, y1: y(step), y2: y(step), stroke: "var(--border)" }), h(Words, { x: left - 8, y: y(step) + 4, fontSize: 11, textAnchor: "end", fill: "var(--fg-muted)" }, steps(step))),
      ),
      view.runs.filter((run) => run.points.length > 1).map((run) => h("polyline", { key: run.id, points: run.points.map(([at, step]) => `${x(at)},${y(step)}`).join(" "), fill: "none", stroke: "var(--line)", strokeWidth: 2 })),
      seen.length === 0 && h(Words, { x: left + 8, y: bottom - 10, fontSize: 12, fill: "var(--fg-muted)" }, "no step seen"),
    ),
  );
}
