// Nodes: their faults over time, and their quarantine. Who may write Airflow's variables puts nodes in and lets them go.

import { ask, Fragment, h, query, useEffect, useId, useRef, useState } from "./host.js";
import { Chip, Shape } from "./signs.js";
import { day, moment, number } from "./words.js";

const WIDTH = 230;
const PERIODS = [["24", "1 day"], ["72", "3 days"], ["168", "7 days"], ["720", "30 days"]];

const change = (node, cluster, what, body) =>
  ask(`nodes/${encodeURIComponent(node)}/${what}?${query({ cluster })}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

const Period = ({ value, set }) => h("select", { "aria-label": "For how long", value, onChange: (event) => set(event.target.value) }, PERIODS.map(([hours, word]) => h("option", { key: hours, value: hours }, word)));

/** One question in place of a dialogue: what is needed, the deed itself, and what went wrong. */
function Ask({ word, act, done, children }) {
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const form = useRef(null);
  useEffect(() => form.current?.querySelector("input, select, button")?.focus(), []);
  const send = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await act();
      done(true);
    } catch (error) {
      setTrouble(error.message);
      setBusy(false);
    }
  };
  const key = (event) => event.key === "Escape" && (event.stopPropagation(), done(false));
  return h("form", { ref: form, className: "links ask", onSubmit: send, onKeyDown: key }, children, h("button", { type: "submit", className: "btn on", disabled: busy }, word), h("button", { type: "button", className: "btn", onClick: () => done(false) }, "Cancel"), trouble && h("span", { className: "sm bad", role: "alert" }, trouble));
}

const Release = ({ node, cluster, done }) => h(Ask, { word: "Release", act: () => change(node, cluster, "release", {}), done }, h("span", { className: "sm" }, `What was said of ${node} until now is void.`));

function Extend({ node, cluster, done }) {
  const [hours, setHours] = useState("72");
  return h(Ask, { word: "Extend", act: () => change(node, cluster, "extend", { hours: +hours }), done }, h(Period, { value: hours, set: setHours }), h("span", { className: "sm muted" }, "longer"));
}

function PutIn({ node, clusters, done }) {
  const [name, setName] = useState(node ?? "");
  const [cluster, setCluster] = useState(clusters[0] ?? "");
  const [hours, setHours] = useState("72");
  const [why, setWhy] = useState("");
  const id = useId();
  const text = (label, value, set, more) => h("input", { "aria-label": label, placeholder: label.toLowerCase(), value, onChange: (event) => set(event.target.value), ...more });
  return h(
    Ask,
    { word: "Quarantine", act: () => change(name.trim(), cluster.trim(), "quarantine", { hours: +hours, why }), done },
    node == null && text("Node name", name, setName, { required: true }),
    text("Cluster", cluster, setCluster, { required: true, list: id, title: "backend:name, as in local:default" }),
    h("datalist", { id }, clusters.map((one) => h("option", { key: one, value: one }))),
    h(Period, { value: hours, set: setHours }),
    text("Why", why, setWhy, { maxLength: 300 }),
  );
}

/** A button that asks before it does something. */
function Asking({ word, form, again, label }) {
  const [asking, setAsking] = useState(null); // null: it was not asked yet
  const button = useRef(null);
  useEffect(() => (asking === false ? button.current?.focus() : undefined), [asking]);
  const done = (changed) => {
    setAsking(false);
    if (changed) again();
  };
  return h(Fragment, null, !asking && h("button", { ref: button, type: "button", className: "btn", "aria-label": label, onClick: () => setAsking(true) }, word), asking && form(done));
}

function Kept({ node, kept, may, again }) {
  return h(
    "div",
    { className: "kept", "data-quarantine": kept.cluster },
    h("div", null, h("span", { className: "b" }, `until ${moment(kept.until)}`), h("span", { className: "sm muted" }, ` on ${kept.cluster}`)),
    h("div", { className: "sm" }, kept.why),
    h("div", { className: "sm muted" }, `${kept.by_person ? "by a person" : "by fault tolerance"}: ${kept.by}${kept.words > 1 ? ` · ${kept.words} words` : ""}`),
    may.edit &&
      h(
        "div",
        { className: "links" },
        h(Asking, { word: "Release…", label: `Release ${node} on ${kept.cluster}…`, again, form: (done) => h(Release, { node, cluster: kept.cluster, done }) }),
        h(Asking, { word: "Extend…", label: `Extend the quarantine of ${node} on ${kept.cluster}…`, again, form: (done) => h(Extend, { node, cluster: kept.cluster, done }) }),
      ),
  );
}

function Strip({ node, from, now, hatch }) {
  const x = (at) => 6 + (Math.max(0, Math.min(at, now) - from) / (now - from)) * (WIDTH - 12);
  return h(
    "svg",
    { width: WIDTH, height: 22, viewBox: `0 0 ${WIDTH} 22`, "aria-hidden": true },
    h("line", { x1: 0, x2: WIDTH, y1: 11, y2: 11, stroke: "var(--border-strong)" }),
    node.quarantine.map((kept) => h("rect", { key: kept.cluster, x: x(kept.since), y: 5, width: Math.max(6, WIDTH - x(kept.since)), height: 12, fill: `url(#${hatch})`, stroke: "var(--wait)" })),
    node.marks.map((fault, n) => h(Shape, { key: n, kind: fault.fault_class, x: x(fault.at), y: 11, r: 5 })),
  );
}

const Hatch = ({ id }) =>
  h("svg", { width: 0, height: 0, "aria-hidden": true, style: { position: "absolute" } }, h("pattern", { id, width: 5, height: 5, patternTransform: "rotate(45)", patternUnits: "userSpaceOnUse" }, h("rect", { width: 5, height: 5, fill: "var(--bg)" }), h("rect", { width: 1.4, height: 5, fill: "var(--wait)" })));

function Table({ sums, pick, again }) {
  const from = sums.now - 86400 * sums.days;
  const hatch = `hatch${useId()}`;
  const words = ["Node", "Faults", `${day(from)} – ${day(sums.now)}`, "Classes", "Quarantine"];
  return h(
    Fragment,
    null,
    h(Hatch, { id: hatch }),
    h(
      "table",
      { className: "t rows", "aria-label": "Nodes" },
      h("thead", null, h("tr", null, words.map((word) => h("th", { key: word, scope: "col" }, word)))),
      h(
        "tbody",
        null,
        sums.nodes.map((node) =>
          h(
            "tr",
            { className: "r", key: node.name, "data-node": node.name },
            h("td", null, h("button", { type: "button", className: "exp", onClick: () => pick(node.name), "aria-label": `Chains with faults on ${node.name}` }, node.name)),
            h("td", { className: "b" }, number(node.faults)),
            h("td", null, h(Strip, { node, from, now: sums.now, hatch })),
            h("td", null, h("span", { className: "links" }, node.classes.map((kind) => h(Chip, { key: kind, kind }))), node.excluded_by > 0 && h("div", { className: "sm muted" }, `left out by ${number(node.excluded_by)} ${node.excluded_by === 1 ? "chain" : "chains"}`)),
            h(
              "td",
              { className: "quar" },
              node.quarantine.map((kept) => h(Kept, { key: kept.cluster, node: node.name, kept, may: sums.may, again })),
              node.quarantine.length === 0 && (sums.may.edit ? h(Asking, { word: "Quarantine…", label: `Put ${node.name} into quarantine…`, again, form: (done) => h(PutIn, { node: node.name, clusters: sums.may.clusters, done }) }) : h("span", { className: "muted" }, "–")),
            ),
          ),
        ),
      ),
    ),
  );
}

/** The section of the page. */
export function Nodes({ sums, pick, again }) {
  return h(
    "section",
    { "aria-label": "Nodes" },
    h(
      "div",
      { className: "sec" },
      h("h3", null, "Nodes"),
      h("span", { className: "sm muted" }, sums ? `in quarantine, then by faults of the last ${sums.days} days; hatched = kept out of new submissions` : ""),
      sums?.may.edit && h(Asking, { word: "Quarantine a node…", again, form: (done) => h(PutIn, { clusters: sums.may.clusters, done }) }),
    ),
    !sums && h("p", { className: "muted" }, "Loading…"),
    sums && sums.nodes.length === 0 && h("p", { className: "muted" }, "No fault named a node, and none is in quarantine."),
    sums && sums.nodes.length > 0 && h(Table, { sums, pick, again }),
  );
}
