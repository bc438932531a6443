// The signs: a class is always shape and word, colour comes third. Icons, badges, and the small bar of restarts.

import { h } from "./host.js";

const ARM = 0.85;
function outline(kind, r) {
  switch (kind) {
    case "HW_NODE":
      return h("rect", { x: -r * ARM, y: -r * ARM, width: r * 2 * ARM, height: r * 2 * ARM, rx: 1 });
    case "NET_FABRIC":
      return h("path", { d: `M0 ${-r * 1.1}L${r * 1.1} 0 0 ${r * 1.1} ${-r * 1.1} 0z` });
    case "OOM_HOST":
      return h("path", { d: `M${-r} ${-r * 0.75}H${r}L0 ${r}z` });
    case "OOM_GPU":
      return h("path", { d: `M${-r} ${r * 0.75}H${r}L0 ${-r}z` });
    case "COMM_HANG":
      return h("path", { d: `M${-r * ARM} ${-r}h${r * 0.6}v${r * 2}h${-r * 0.6}zM${r * 0.25} ${-r}h${r * 0.6}v${r * 2}h${-r * 0.6}z` });
    case "APP_ERROR":
      return h("path", { d: `M${-r * 0.8} ${-r * 0.8}L${r * 0.8} ${r * 0.8}M${r * 0.8} ${-r * 0.8}L${-r * 0.8} ${r * 0.8}`, stroke: "currentColor", strokeWidth: r * 0.5, fill: "none" });
    case "ENV_ERROR":
      return h("path", { d: `M0 ${-r * 1.05}L${r * 0.95} ${-r * 0.5}V${r * 0.5}L0 ${r * 1.05} ${-r * 0.95} ${r * 0.5}V${-r * 0.5}z` });
    case "DISRUPTION":
      return h("path", { d: `M${-r * 0.7} ${-r}V${r}M${-r * 0.7} ${-r * 0.9}H${r * 0.9}L${r * 0.3} ${-r * 0.3} ${r * 0.9} ${r * 0.3}H${-r * 0.7}`, fill: "none", stroke: "currentColor", strokeWidth: r * 0.28 });
    default:
      return [
        h("circle", { key: "ring", r: r * ARM, fill: "none", stroke: "currentColor", strokeWidth: r * 0.36 }),
        h("circle", { key: "dot", r: r * 0.28 }),
      ];
  }
}

/** The shape of a class, round a point of an SVG. */
export const Shape = ({ kind, x = 0, y = 0, r = 6 }) =>
  h("g", { transform: `translate(${x},${y})`, style: { color: `var(--c-${kind}, var(--c-UNKNOWN))`, fill: "currentColor" } }, outline(kind, r));

/** A class as shape and word. */
export const Chip = ({ kind, boxed }) =>
  h(
    "span",
    { className: `chip${boxed ? " box" : ""}`, style: { color: `var(--c-${kind}, var(--c-UNKNOWN))` } },
    h("svg", { className: "ic", width: 12, height: 12, viewBox: "-7 -7 14 14", "aria-hidden": true }, h(Shape, { kind })),
    kind,
  );

const PATHS = {
  check: "M5 12.5l4.5 4.5L19 7.5",
  cross: "M6 6l12 12M18 6L6 18",
  run: "M8 5v14l11-7z",
  again: "M20 12a8 8 0 1 1-2.6-5.9M20 3v5h-5",
  warn: "M12 4L2.5 20h19zM12 10v5M12 17.4v.6",
  closed: "M9 6l6 6-6 6",
  open: "M6 9l6 6 6-6",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  out: "M14 4h6v6M20 4l-9 9M18 14v6H4V6h6",
  ask: "M8.5 9a3.5 3.5 0 1 1 5 3.2c-1.1.6-1.5 1.2-1.5 2.3M12 18.4v.6",
  stop: "M7.5 1.5h9l6 6v9l-6 6h-9l-6-6v-9z",
};
export const Icon = ({ name, size = 14 }) => {
  const filled = name === "stop" || name === "run";
  return h(
    "svg",
    { className: "ic", width: size, height: size, viewBox: "0 0 24 24", fill: filled ? "currentColor" : "none", stroke: name === "stop" ? "none" : "currentColor", strokeWidth: 2.2, strokeLinecap: "round", strokeLinejoin: "round", "aria-hidden": true },
    h("path", { d: PATHS[name] }),
  );
};

/** ✓ or ✗ with a word for who can't see it; nothing while it isn't known. */
export const Mark = ({ ok }) =>
  ok == null
    ? h("span", { className: "muted", "aria-hidden": true }, "·")
    : h("span", { className: ok ? "ok" : "bad" }, h(Icon, { name: ok ? "check" : "cross", size: 13 }), h("span", { className: "sr" }, ok ? "yes: " : "no: "));

const STATES = {
  starting: ["running", "run", "Starting"],
  running: ["running", "run", "Running"],
  recovering: ["recovering", "again", "Recovering"],
  recovered: ["good", "check", "Recovered"],
  succeeded: ["good", "check", "Succeeded"],
  "stopped by fault tolerance": ["stopped", "stop", "Stopped by fault tolerance"],
  "waits for a person": ["waits", "ask", "Waits for a person"],
  failed: ["failed", "cross", "Failed"],
  unreadable: ["failed", "cross", "Unreadable"],
};
export const stateWord = (state) => STATES[state]?.[2] ?? state;
export const Badge = ({ state, small }) => {
  const [look, icon, word] = STATES[state] ?? ["running", "run", state];
  return h("span", { className: `badge s-${look}${small ? " small" : ""}` }, h(Icon, { name: icon, size: small ? 12 : 15 }), word);
};

/** Restarts used of their maximum, as pips; above 12 as a bar. */
export const Pips = ({ used: [used, most] }) => {
  if (!most) return null;
  if (most > 12)
    return h(
      "svg",
      { className: "ic bar", width: 64, height: 10, "aria-hidden": true },
      h("rect", { x: 0.75, y: 0.75, width: 62.5, height: 8.5, rx: 2, fill: "none", stroke: "var(--fg-muted)", strokeWidth: 1.5 }),
      h("rect", { x: 1, y: 1, width: (62 * Math.min(used, most)) / most, height: 8, fill: "var(--fg-muted)" }),
    );
  const pips = Array.from({ length: most }, (_, index) => h("i", { key: index, className: index < used ? (used >= most ? "x" : "u") : "" }));
  return h("span", { className: "pips", "aria-hidden": true }, pips);
};

/** The hatching of a start-up, to be named by `id` within one SVG. */
export function Patterns({ id }) {
  const hatch = (name, angle, back, line, width) =>
    h(
      "pattern",
      { id: `${id}-${name}`, width: 5, height: 5, patternTransform: `rotate(${angle})`, patternUnits: "userSpaceOnUse" },
      h("rect", { width: 5, height: 5, fill: back }),
      h("rect", { width, height: 5, fill: line }),
    );
  return h("defs", null, hatch("start", 45, "var(--bg)", "var(--train)", 2.2));
}

/** Text of an SVG. Its size is a style: the host's own rules for fonts are stronger than attributes. */
export const Words = ({ fontSize = 12, fontWeight, children, ...rest }) => h("text", { ...rest, style: { fontSize, fontWeight } }, children);
