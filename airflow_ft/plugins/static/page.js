// The page "Fault tolerance" in the menu: what it came to, chains of all DAGs that the user may read, nodes.
// With a task instance in its address it shows that chain, wide: alerts and notifications lead there.

import { ask, Fragment, h, query, useEffect, useMemo, usePolled, useState } from "./host.js";
import { Chain } from "./chain.js";
import { NOTE } from "./detail.js";
import { Empty, Refusal } from "./empty.js";
import { ChainRows } from "./lists.js";
import { Nodes } from "./nodes.js";
import { useStyles } from "./styles.js";
import { clock, duration, number } from "./words.js";

const STATES = ["running", "recovering", "recovered", "waits for a person", "stopped by fault tolerance", "failed", "succeeded"];
const CLASSES = ["HW_NODE", "NET_FABRIC", "OOM_HOST", "OOM_GPU", "COMM_HANG", "APP_ERROR", "ENV_ERROR", "UNKNOWN"];
const SLOW_SECONDS = 15;

const percent = (share) => (share == null ? "–" : `${Math.round(100 * share)} %`);
function Stats({ sums }) {
  const rows = [
    ["Restarts", number(sums.restarts), `+ ${number(sums.free_restarts)} not charged`],
    ["Recovered", sums.judged ? percent(sums.recovered / sums.judged) : "–", `${number(sums.recovered)} of ${number(sums.judged)} seen to the end`],
    ["Time lost", duration(sums.lost_seconds), sums.training_seconds ? `${percent(sums.lost_seconds / sums.training_seconds)} of training` : "no training"],
    ["ETTR", sums.ettr == null ? "–" : sums.ettr.toFixed(2), "share of wall time with new steps"],
    ["Median to recover", sums.median_seconds == null ? "–" : duration(sums.median_seconds), sums.slow_seconds == null ? "" : `90 % within ${duration(sums.slow_seconds)}`],
    ["Marked wrong", `${number(sums.marked_wrong)} of ${number(sums.marked)}`, "diagnoses judged by people"],
  ];
  return h("dl", { className: "stats" }, rows.map(([label, value, detail]) => h("div", { key: label }, h("dt", { className: "lab" }, label), h("dd", null, h("div", { className: "n" }, value), h("div", { className: "sm muted" }, detail)))));
}

const Choice = ({ label, value, options, set }) =>
  h("select", { "aria-label": label, value, onChange: (event) => set(event.target.value) }, h("option", { value: "" }, `${label}: any`), options.map((option) => h("option", { key: option, value: option }, option)));

function Chains({ filters, set }) {
  const [more, setMore] = useState({ key: "", items: [], next: null });
  const key = query({ ...filters, limit: 25 });
  const { data, error, again } = usePolled(`chains?${key}`, () => true);
  const further = more.key === key ? more : { items: [], next: data?.next };
  const load = async () => {
    const page = await (await ask(`chains?${key}&${query({ after: further.next })}`)).json();
    setMore({ key, items: [...further.items, ...page.items], next: page.next });
  };
  const seen = new Set(data?.items.map((row) => JSON.stringify(row.task)));
  const rows = [...(data?.items ?? []), ...further.items.filter((row) => !seen.has(JSON.stringify(row.task)))];
  const text = (name, label) => h("input", { "aria-label": label, placeholder: `${label}: any`, defaultValue: filters[name], key: `${name}${filters[name]}`, onKeyDown: (event) => event.key === "Enter" && set(name, event.target.value.trim()), onBlur: (event) => set(name, event.target.value.trim()) });
  return h(
    Fragment,
    null,
    h(
      "div",
      { className: "sec" },
      h("h3", null, "Chains"),
      h(Choice, { label: "State", value: filters.state, options: STATES, set: (value) => set("state", value) }),
      h(Choice, { label: "Class", value: filters.fault_class, options: CLASSES, set: (value) => set("fault_class", value) }),
      text("node", "Node"),
      text("dag_id", "DAG"),
      h("span", { className: "sm muted" }, "running first, then newest; times are UTC"),
    ),
    error && h("p", { className: "alert", role: "alert" }, `The chains could not be loaded: ${error.message}`, h("button", { type: "button", className: "btn", onClick: again }, "Try again")),
    !data && !error && h("p", { className: "muted" }, "Loading…"),
    data && rows.length === 0 && h(Empty, { title: "No chain here" }, further.next ? `None of the newest ${number(data.looked_at)} chains fits these filters.` : "No DAG that you may read has a retry chain that fits these filters."),
    rows.length > 0 && h(ChainRows, { rows, now: data.now, everywhere: true }),
    further.next && h("p", { style: { marginTop: 8 } }, h("button", { type: "button", className: "btn", onClick: load }, rows.length ? "Show more" : "Look further back")),
  );
}

function Overview() {
  const [days, setDays] = useState(30);
  const [filters, setFilters] = useState({ state: "", fault_class: "", node: "", dag_id: "" });
  const { data: sums, error, at, again } = usePolled(`figures?days=${days}`, () => false);
  const set = (name, value) => setFilters((before) => (before[name] === value ? before : { ...before, [name]: value }));
  useEffect(() => {
    const timer = setInterval(() => document.hidden || again(), 1000 * SLOW_SECONDS * 4);
    return () => clearInterval(timer);
  }, []);
  if (error?.status === 401 || error?.status === 403) return h("div", { className: "ft" }, h(Refusal, { error, task: {}, again }));
  return h(
    "div",
    { className: "ft" },
    h(
      "header",
      { className: "head plain" },
      h("h2", null, "Fault tolerance"),
      h("span", { className: "tools" }, [7, 30].map((many) => h("button", { key: many, type: "button", className: `btn${days === many ? " on" : ""}`, "aria-pressed": days === many, onClick: () => setDays(many) }, `${many} days`))),
      h("div", { className: "sub" }, sums ? `All DAGs that you may read: ${number(sums.dags)} with ${number(sums.chains)} chains, ${number(sums.attempts)} attempts in ${sums.days} days${sums.complete ? "" : " (the newest; there are more)"} · seen ${clock(at / 1000)}` : "All DAGs that you may read"),
    ),
    sums && h(Stats, { sums }),
    error && h("p", { className: "alert", role: "alert" }, `The figures could not be loaded: ${error.message}`, h("button", { type: "button", className: "btn", onClick: again }, "Try again")),
    h(Chains, { filters, set }),
    h(Nodes, { sums, pick: (node) => set("node", node), again }),
    h("p", { className: "note" }, `${NOTE} A node with many faults is a suspect, not a verdict.`),
  );
}

/** What the host calls: the page in the menu. */
export function FaultTolerance() {
  useStyles();
  const search = location.search;
  const task = useMemo(() => {
    const given = new URLSearchParams(search);
    const index = Number.parseInt(given.get("map_index") ?? "-1", 10);
    const found = { dag_id: given.get("dag_id"), run_id: given.get("run_id"), task_id: given.get("task_id"), map_index: Number.isNaN(index) ? -1 : index };
    return found.dag_id && found.run_id && found.task_id ? found : null;
  }, [search]);
  return task ? h(Chain, { key: search, task, own: true }) : h(Overview);
}
