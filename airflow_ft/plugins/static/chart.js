// The picture of a chain: what happened (a lane for each run), over what it cost (steps), on one time axis.

import { Fragment, h, useId, useMemo, useRef, useState, useWidth } from "./host.js";
import { CrowdChart, MOST_LANES } from "./crowd.js";
import { Icon, Patterns, Shape, Words } from "./signs.js";
import { lowestStep, Places, quietStretch, scale, spanOf, stepTicks, timeUnit } from "./scale.js";
import { clock, day, duration, minute, number, steps, textWidth } from "./words.js";

const BAR = 14;
const TOP = 18;
const GAP = 18;
const BOLD = "600 12px Inter, sans-serif";

const edgeWord = (live) => (live ? "now" : "end");

function Bar({ phase, x, y, id, live }) {
  const left = x(phase.start);
  const width = Math.max(1.5, x(phase.end) - left);
  const box = { x: left, y, width, height: BAR };
  switch (phase.kind) {
    case "wait":
      return h("line", { x1: left, x2: left + width, y1: y + BAR / 2, y2: y + BAR / 2, stroke: "var(--wait)", strokeWidth: 1.5, strokeDasharray: "1.5 3" });
    case "startup":
      return h("rect", { ...box, fill: `url(#${id}-start)`, stroke: "var(--train)" });
    case "again":
      return h("rect", { ...box, fill: "var(--again)", stroke: "var(--train)" });
    case "silence":
      return h("rect", { ...box, fill: "none", stroke: "var(--c-COMM_HANG)", strokeWidth: 1.5, strokeDasharray: "3 2" });
    case "end":
      return h("line", { x1: left, x2: left + width, y1: y + BAR / 2, y2: y + BAR / 2, stroke: "var(--wait)", strokeWidth: 1.5 });
    default:
      return h("rect", { ...box, fill: "var(--train)", className: live ? "pulse" : undefined });
  }
}

const laneWords = (run) =>
  [
    `Attempt ${run.label}, ${clock(run.started)}, ${run.ended ? `ran ${duration(run.ended - run.started)}` : run.live ? "is running" : "end not seen"}.`,
    run.fault ? `${run.fault.fault_class}: ${run.fault.text}` : "No fault.",
    run.outcome ? `${run.outcome}.` : "",
  ].join(" ");

const PassedSign = ({ x, y, r = 6 }) =>
  h(
    "g",
    { transform: `translate(${x},${y})` },
    h("circle", { r, fill: "var(--ok)", stroke: "var(--bg)", strokeWidth: 1.5 }),
    h("path", { d: `M${-r * 0.45} 0l${r * 0.32} ${r * 0.35}L${r * 0.5} ${-r * 0.38}`, fill: "none", stroke: "var(--bg)", strokeWidth: 1.6 }),
  );

function Lane({ run, index, row, x, id, width, right, follower, focused, setFocused, open }) {
  const y = row.y + (row.height - BAR) / 2;
  const first = run.phases[0]?.start ?? run.started;
  const last = run.phases.length ? run.phases[run.phases.length - 1].end : (run.ended ?? run.started);
  const start = x(first);
  const end = x(last);
  const how = run.how && textWidth(run.how) < start - row.left - 14 ? run.how : "";
  const fault = run.fault;
  const label = fault ? `${fault.fault_class}  ${fault.short}` : "";
  const room = width - end - 24 >= textWidth(label, BOLD);
  const short = fault && !room ? fault.fault_class : label;
  const inside = fault && width - end - 24 < textWidth(short, BOLD);
  const key = (event) => {
    const move = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: Infinity }[event.key];
    if (move != null) {
      event.preventDefault();
      setFocused(move, true);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      open(run.id);
    }
  };
  return h(
    "g",
    { className: "lane", role: "button", tabIndex: focused ? 0 : -1, "aria-label": laneWords(run), "data-lane": index, onKeyDown: key, onFocus: () => setFocused(index), onClick: () => open(run.id) },
    h("rect", { className: "hit", x: 0, y: row.y + 1, width, height: row.height - 2, fill: "transparent", rx: 4 }),
    h(Words, { x: row.left - 10, y: y + 11, fontSize: 12, fontWeight: 600, textAnchor: "end", fill: "var(--fg)" }, run.label),
    how && h(Words, { x: start - 8, y: y + 11, fontSize: 12, textAnchor: "end", fill: "var(--fg-muted)" }, how),
    run.phases.map((phase, n) => h(Bar, { key: n, phase, x, y, id, live: run.live && n === run.phases.length - 1 })),
    run.live && h("path", { d: `M${x(last)} ${y}l6 ${BAR / 2} -6 ${BAR / 2}z`, fill: "var(--train)" }),
    follower && h(PassedSign, { x: x(follower.at), y: y + BAR / 2 }),
    fault &&
      h(
        Fragment,
        null,
        h(Shape, { kind: fault.fault_class, x: end + 9, y: y + BAR / 2, r: 5.5 }),
        inside && h("rect", { x: end - textWidth(short, BOLD) - 10, y: y - 1, width: textWidth(short, BOLD) + 6, height: BAR + 2, fill: "var(--bg)", opacity: 0.92, rx: 2 }),
        h(
          Words,
          { x: inside ? end - 7 : end + 19, y: y + 11, fontSize: 12, textAnchor: inside ? "end" : "start", fill: "var(--fg)" },
          h("tspan", { style: { fontWeight: 600 } }, fault.fault_class),
          short === label && h("tspan", { fill: "var(--fg-muted)" }, `  ${fault.short}`),
        ),
      ),
  );
}

/** Points along a line, close enough that no label fits between two of them. */
function along(points, x, y) {
  if (points.length < 2) return [];
  const [[a, b], [c, d]] = [points[0], points[points.length - 1]].map(([at, step]) => [x(at), y(step)]);
  const count = Math.ceil(Math.hypot(c - a, d - b) / 8);
  return Array.from({ length: count + 1 }, (_, n) => [a + ((c - a) * n) / count, b + ((d - b) * n) / count]);
}

function Curve({ runs, x, y, bottom, left, right, view }) {
  const places = new Places();
  const shown = runs.filter((run) => run.points.length);
  if (!shown.length) return h(Words, { x: left + 8, y: bottom - 12, fontSize: 12, fill: "var(--fg-muted)" }, "no step seen yet");
  const signs = [];
  const labels = [];
  const say = (text, px, py, options, extra = {}) => {
    if (places.put(text, px, py, { ...options, left, right: right + 6 }))
      labels.push(h(Words, { key: labels.length, x: px, y: py, fontSize: 12, textAnchor: options.anchor ?? "start", ...extra }, text));
  };
  /** Two lines at the first of some places where the first one is free. */
  const sayFirst = (lines, spots, floor) => {
    for (const [px, py, anchor] of spots) {
      if (py + 14 * (lines.length - 1) > floor - 2) continue;
      const before = labels.length;
      lines.forEach(([text, options, extra], n) => (n && labels.length === before ? null : say(text, px, py + 14 * n, { ...options, anchor }, extra)));
      if (labels.length > before) return;
    }
  };
  const last = shown[shown.length - 1];
  const [lastAt, lastStep] = last.points[last.points.length - 1];
  if (view.live && last.live) {
    signs.push(h("circle", { key: "now", cx: x(lastAt), cy: y(lastStep), r: 4, fill: "var(--line)" }));
    say(`${number(lastStep)} now`, x(lastAt) - 6, y(lastStep) - 8, { anchor: "end", font: BOLD }, { fontWeight: 600, fill: "var(--fg)" });
  }
  for (const run of shown) for (const [px, py] of along(run.points, x, y)) places.take(px - 2, py - 2, 4, 4);
  for (const run of [...shown].reverse()) {
    const [at, step] = run.points[run.points.length - 1];
    if (!run.fault) continue;
    const [px, py] = [x(at), y(step)];
    places.take(px - 7, py - 7, 14, 14);
    if (run.passed) {
      const end = x(run.passed.at);
      signs.push(h("line", { key: `${run.id}l`, x1: px, x2: end, y1: py, y2: py, stroke: "var(--fg)", strokeDasharray: "4 3" }), h(PassedSign, { key: `${run.id}p`, x: end, y: py }));
      places.take(end - 7, py - 7, 14, 14);
      sayFirst(
        [
          [`passed ${number(run.passed.step)} at ${minute(run.passed.at)}`, { font: BOLD }, { fontWeight: 600, fill: "var(--ok)" }],
          ...(run.passed.twice ? [[`${number(run.passed.twice)} ${run.passed.twice === 1 ? "step" : "steps"} twice`, {}, { fill: "var(--fg-muted)" }]] : []),
        ],
        [
          [end + 9, py + 16, "start"],
          [end + 9, py - 22, "start"],
          [px - 8, py - 38, "end"],
        ],
        bottom,
      );
    }
    signs.push(h(Shape, { key: `${run.id}s`, kind: run.fault.fault_class, x: px, y: py, r: 5.5 }));
    say(`died at ${number(step)}`, px - 8, py - 9, { anchor: "end", font: BOLD }, { fontWeight: 600, fill: "var(--fg)" });
  }
  const lines = shown.map((run) => h("polyline", { key: run.id, points: run.points.map(([at, step]) => `${x(at)},${y(step)}`).join(" "), fill: "none", stroke: "var(--line)", strokeWidth: 2 }));
  return h("g", null, lines, signs, labels);
}

function Axis({ x, from, to, folds, left, right, top, bottom, live }) {
  const quiet = folds.reduce((sum, [a, b]) => sum + b - a, 0);
  const size = timeUnit(to - from - quiet, right - left);
  const made = [];
  let before = -Infinity;
  for (let at = Math.ceil(from / size) * size; at < to; at += size) {
    const px = x(at);
    if (folds.some(([a, b]) => at > a - 1 && at < b + 1) || px - before < 46 || right - px < 66) continue;
    before = px;
    const word = size >= 86400 ? day(at) : size < 60 ? clock(at) : minute(at);
    made.push(
      h("line", { key: `l${at}`, x1: px, x2: px, y1: top - 4, y2: bottom, stroke: "var(--border)" }),
      h(Words, { key: `t${at}`, x: px, y: bottom + 16, fontSize: 11, textAnchor: "middle", fill: "var(--fg-muted)" }, word),
    );
  }
  return h(
    "g",
    null,
    made,
    h("line", { x1: right, x2: right, y1: top - 4, y2: bottom, stroke: live ? "var(--fg-muted)" : "var(--border-strong)" }),
    h(Words, { x: right, y: bottom + 16, fontSize: 11, fontWeight: 600, textAnchor: "end", fill: "var(--fg)" }, `${edgeWord(live)} ${minute(to)}`),
  );
}

function Lanes({ view, width, folds, open }) {
  const runs = view.runs;
  const narrow = width < 520;
  const left = narrow ? 40 : 54;
  const height = narrow ? 34 : 30;
  const id = useId();
  const [focused, setFocus] = useState(0);
  const box = useRef(null);
  const [tip, setTip] = useState(null);
  const [from, to] = spanOf(view);
  const plain = width - (narrow ? 8 : 14);
  const rough = scale(from, to, left, plain, folds);
  const over = Math.max(0, ...runs.filter((run) => run.fault).map((run) => rough(run.phases[run.phases.length - 1]?.end ?? run.started) + 26 + textWidth(`${run.fault.fault_class}  ${run.fault.short}`, BOLD) - plain));
  const right = narrow ? plain : plain - Math.min(240, over * 1.1 + 4);
  const x = scale(from, to, left, right, folds);
  const laneEnd = TOP + runs.length * height;
  const curveTop = laneEnd + GAP;
  const bottom = curveTop + (narrow ? 110 : 120);
  const seen = runs.flatMap((run) => run.points.map(([, step]) => step));
  const highest = Math.max(1, ...seen);
  const lowest = lowestStep(seen);
  const y = scale(lowest, highest + 0.06 * (highest - lowest), bottom, curveTop);
  const setFocused = (next, move) => {
    const bounded = Math.max(0, Math.min(runs.length - 1, next));
    setFocus(bounded);
    if (move) box.current?.querySelector(`[data-lane="${bounded}"]`)?.focus();
  };
  const lost = runs.filter((run) => run.fault).map((run) => [run.fault.at, run.passed?.at ?? (run.outcome === "stopped" || !view.live ? run.ended ?? run.fault.at : to)]);
  const hover = (event) => {
    const bounds = box.current.getBoundingClientRect();
    const px = event.clientX - bounds.left;
    if (px < left || px > right) return setTip(null);
    let [a, b] = [from, to];
    for (let n = 0; n < 40; n++) {
      const middle = (a + b) / 2;
      if (x(middle) < px) a = middle;
      else b = middle;
    }
    const run = [...runs].reverse().find((one) => one.started <= a);
    const phase = run?.phases.find((one) => one.start <= a && a <= one.end);
    return setTip({ px, py: event.clientY - bounds.top, text: [clock(a), run && `attempt ${run.label}`, phase?.kind, stepAt(run, a)].filter(Boolean).join(" · ") });
  };
  return h(
    "div",
    { className: "chart", ref: box, onMouseMove: hover, onMouseLeave: () => setTip(null), role: "group", "aria-label": "Attempts over time. Each lane is an attempt; the table below says the same." },
    h(
      "svg",
      { width, height: bottom + 24, viewBox: `0 0 ${width} ${bottom + 24}` },
      h(Patterns, { id }),
      lost.map(([a, b], n) => h("rect", { key: n, x: x(a), y: TOP - 4, width: Math.max(0, x(b) - x(a)), height: bottom - TOP + 4, fill: "var(--lost)" })),
      h(Axis, { x, from, to, folds, left, right, top: TOP, bottom, live: view.live }),
      stepTicks(lowest, highest).map((step) =>
        h(
          "g",
          { key: step },
          h("line", { x1: left, x2: right, y1: y(step), y2: y(step), stroke: "var(--border)" }),
          h(Words, { x: left - 6, y: y(step) + 4, fontSize: 11, textAnchor: "end", fill: "var(--fg-muted)" }, steps(step)),
        ),
      ),
      h(Words, { x: 0, y: 10, fontSize: 11, fontWeight: 600, fill: "var(--fg-muted)" }, "attempt"),
      h(Words, { x: 0, y: curveTop - 4, fontSize: 11, fontWeight: 600, fill: "var(--fg-muted)" }, "step"),
      h("line", { x1: 0, x2: right, y1: laneEnd + 4, y2: laneEnd + 4, stroke: "var(--border-strong)" }),
      view.segments.slice(1).map((segment) => h(SegmentLine, { key: segment.number, px: x(segment.at), bottom })),
      runs.map((run, index) =>
        h(Lane, { key: run.id, run, index, row: { y: TOP + index * height, height, left }, x, id, width, right, follower: runs[index - 1]?.passed, focused: index === Math.min(focused, runs.length - 1), setFocused, open }),
      ),
      h(Curve, { runs, x, y, bottom, left, right, view }),
      folds.map(([a, b]) => h(Words, { key: a, x: (x(a) + x(b)) / 2, y: bottom + 16, fontSize: 11, textAnchor: "middle", fill: "var(--fg-muted)" }, "⫽")),
      tip && h("line", { x1: tip.px, x2: tip.px, y1: TOP - 4, y2: bottom, stroke: "var(--fg-muted)", strokeDasharray: "2 2" }),
    ),
    tip && h("div", { className: "tip", style: { left: Math.min(tip.px + 10, width - 250), top: tip.py + 14 } }, tip.text),
  );
}

const SegmentLine = ({ px, bottom }) =>
  h(
    "g",
    null,
    h("line", { x1: px, x2: px, y1: 4, y2: bottom, stroke: "var(--fg)", strokeWidth: 1.5 }),
    h(Words, { x: px - 4, y: 10, fontSize: 11, textAnchor: "end", fill: "var(--fg)" }, "cleared by a person"),
  );

function stepAt(run, at) {
  if (!run || run.points.length < 2) return null;
  const [[a, first], [b, last]] = [run.points[0], run.points[run.points.length - 1]];
  if (at < a || at > b) return null;
  return `step ${number(Math.round(first + ((last - first) * (at - a)) / Math.max(1e-9, b - a)))}`;
}

function Legend({ id }) {
  const sample = (child) => h("svg", { width: 20, height: 12, "aria-hidden": true }, h(Patterns, { id }), child);
  const box = { x: 1, y: 2, width: 18, height: 8 };
  return h(
    "div",
    { className: "legend" },
    h("span", null, sample(h("rect", { ...box, fill: `url(#${id}-start)`, stroke: "var(--train)" })), "queued, start-up"),
    h("span", null, sample(h("rect", { ...box, fill: "var(--again)", stroke: "var(--train)" })), "steps done again"),
    h("span", null, sample(h("rect", { ...box, fill: "var(--train)" })), "training"),
    h("span", null, sample(h("rect", { ...box, fill: "none", stroke: "var(--c-COMM_HANG)", strokeWidth: 1.5, strokeDasharray: "3 2" })), "silence"),
    h("span", null, sample(h("line", { x1: 1, x2: 19, y1: 6, y2: 6, stroke: "var(--wait)", strokeWidth: 1.5, strokeDasharray: "1.5 3" })), "back-off"),
    h("span", null, sample(h("rect", { ...box, fill: "var(--lost)" })), "no new steps"),
  );
}

/** Lanes, or for many runs a row for each class and node: 128 lanes would hide what people ask. */
export function Chart({ view, open }) {
  const box = useRef(null);
  const width = useWidth(box);
  const [whole, setWhole] = useState(false);
  const crowded = view.runs.length > MOST_LANES;
  const quiet = useMemo(() => (crowded || !view.runs.length ? [] : quietStretch(view.runs, ...spanOf(view))), [view, crowded]);
  const folds = whole ? [] : quiet;
  const folded = quiet.reduce((sum, [a, b]) => sum + b - a, 0);
  return h(
    "section",
    { "aria-label": "Attempts over time" },
    h(
      "div",
      { className: "sec" },
      h("h3", null, crowded ? "When, what and where" : "Attempts over time"),
      h("span", { className: "sm muted grow hide-n" }, crowded ? "one mark per fault; a row per class and per node" : "phases above, steps below, one time axis (UTC)"),
      quiet.length > 0 && h("button", { type: "button", className: "btn", "aria-pressed": whole, onClick: () => setWhole(!whole) }, whole ? "Fold what is quiet" : `${duration(folded)} of quiet folded`),
    ),
    h("div", { ref: box }, width > 0 && view.runs.length > 0 && h(crowded ? CrowdChart : Lanes, { view, width, folds, open })),
    !crowded && h(Legend, { id: "ftlegend" }),
    view.bursts.map((burst) => h("p", { key: burst.start, className: "sm warn" }, h(Icon, { name: "warn", size: 13 }), ` ${burst.text}, from ${day(burst.start)} ${minute(burst.start)}`)),
  );
}
