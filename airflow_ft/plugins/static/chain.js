// The tab "Retry chain" of a task instance, and the same as a page of its own: one look has to tell whether training
// recovered, if not why, and what to do.

import { ask, chainPath, copyText, Fragment, h, ownPage, taskPage, useMemo, useRef, usePolled, useState, useWidth } from "./host.js";
import { Chart } from "./chart.js";
import { Detail, NOTE } from "./detail.js";
import { Empty, Refusal } from "./empty.js";
import { Badge, Chip, Icon, Mark, Pips, stateWord } from "./signs.js";
import { useStyles } from "./styles.js";
import { clock, duration, moment, number } from "./words.js";

const PAGE = 25;
const CARDS_BELOW = 720;

const Answer = ({ answer }) =>
  h(
    "div",
    { className: "ans", "data-answer": answer.key },
    h("dt", { className: "lab" }, answer.label),
    h(
      "dd",
      null,
      h("div", { className: `v ${answer.tone ?? ""}` }, answer.tone === "warn" && h(Icon, { name: "warn" }), answer.tone === "ok" && h(Icon, { name: "check" }), answer.tone === "bad" && answer.key === "recovered" && h(Icon, { name: "cross" }), answer.used && h(Pips, { used: answer.used }), answer.tone && " ", answer.value),
      h(
        "div",
        { className: "d" },
        answer.fault_class && h(Chip, { kind: answer.fault_class }),
        answer.fault_class && answer.detail && " · ",
        answer.detail,
        answer.checks.length > 0 && h("span", { className: "chk" }, answer.checks.map((check) => h("span", { key: check.name }, h(Mark, { ok: check.ok }), " ", check.name, check.ok == null && h("span", { className: "sr" }, ": not known")))),
      ),
    ),
  );

export const Todo = ({ todo }) => h("p", { className: `todo t-${todo.tone}` }, h("b", null, "What to do"), "  ", todo.text);

export function Copy({ path }) {
  const [word, setWord] = useState("Copy as Markdown");
  const copy = async () => {
    try {
      await copyText(await (await ask(path)).text());
      setWord("Copied");
    } catch {
      setWord("Could not be copied");
    }
    setTimeout(() => setWord("Copy as Markdown"), 3000);
  };
  return h("button", { type: "button", className: "btn", onClick: copy }, h(Icon, { name: "copy", size: 13 }), word);
}

function Head({ view, task, at, own }) {
  return h(
    Fragment,
    null,
    h(
      "header",
      { className: "head" },
      h("h2", null, h(Badge, { state: view.state }), h("span", null, view.text.headline)),
      h("div", { className: "sub" }, `${view.text.sub}${view.live ? ` · seen ${clock(at / 1000)}` : ""}`),
      h(
        "span",
        { className: "tools" },
        h(Copy, { path: chainPath(task, "/markdown") }),
        own ? h("a", { className: "btn", href: taskPage(task) }, h(Icon, { name: "out", size: 13 }), "Task instance") : h("a", { className: "btn", href: ownPage(task) }, h(Icon, { name: "out", size: 13 }), "Own page"),
      ),
    ),
    h(Todo, { todo: view.text.todo }),
    h("dl", { className: "answers" }, view.text.answers.map((answer) => h(Answer, { key: answer.key, answer }))),
  );
}

const nodesWord = (run) => {
  const count = run.node_count ? `${run.node_count} ${run.node_count === 1 ? "node" : "nodes"}` : "nodes not known yet";
  const added = run.nodes_in.map((node) => `+ ${node}`);
  const out = run.nodes_out.map((node) => `− ${node}`);
  return [count, ...added, ...out].join(", ");
};
const stepsWord = (run) => (run.last_step == null ? "no step" : `${number(run.first_step)} → ${number(run.last_step)}`);
const ranWord = (run) => (run.ended ? duration(run.ended - run.started) : run.live ? "running" : "end not seen");
const Outcome = ({ run }) => h(Fragment, null, run.live ? h(Icon, { name: "run", size: 12 }) : run.ok != null && h(Mark, { ok: run.ok }), " ", run.outcome);
const Fault = ({ run, live }) =>
  run.fault ? h(Fragment, null, h(Chip, { kind: run.fault.fault_class }), h("div", { className: "sm" }, run.fault.text)) : h("span", { className: "muted" }, live ? "none so far" : "none");

function Toggle({ run, opened, toggle }) {
  return h("button", { type: "button", className: "exp", id: `ft-row-${run.id}`, "aria-expanded": opened, "aria-label": `Attempt ${run.label}, details`, onClick: () => toggle(run.id) }, h(Icon, { name: opened ? "open" : "closed", size: 14 }), run.label);
}

function Row({ run, opened, toggle, task, may, mark }) {
  return h(
    Fragment,
    null,
    h(
      "tr",
      { className: `r${opened ? " open" : ""}`, "data-run": run.id },
      h("td", null, h(Toggle, { run, opened, toggle })),
      h("td", { className: "nw" }, moment(run.started), h("div", { className: "sm muted" }, ranWord(run))),
      h("td", null, stepsWord(run), h("div", { className: "sm muted" }, nodesWord(run))),
      h("td", null, h(Fault, { run, live: run.live })),
      h("td", null, run.done || "–"),
      h("td", null, h(Outcome, { run })),
    ),
    opened && h("tr", { className: "det" }, h("td", { colSpan: 6 }, h(Detail, { task, run, may, mark }))),
  );
}

const Card = ({ run, opened, toggle, task, may, mark }) =>
  h(
    "div",
    { className: `card${opened ? " open" : ""}`, "data-run": run.id },
    h("div", { className: "top" }, h(Toggle, { run, opened, toggle }), h("span", { className: "muted" }, `${moment(run.started)} · ${ranWord(run)}`)),
    h("div", null, `${stepsWord(run)} · ${nodesWord(run)}`),
    h("div", null, h(Fault, { run, live: run.live })),
    h("div", null, run.done ? `${run.done} · ` : "", h(Outcome, { run })),
    opened && h(Detail, { task, run, may, mark }),
  );

function Runs({ view, task, opened, toggle, width, mark }) {
  const [kind, setKind] = useState(null);
  const [shown, setShown] = useState(PAGE);
  const many = view.runs.length > PAGE;
  const cards = width < CARDS_BELOW;
  const fitting = view.runs.filter((run) => kind == null || (kind === "open" ? run.fault && run.ok !== true : run.fault?.fault_class === kind));
  const ordered = many || cards ? [...fitting].reverse() : fitting;
  const rows = ordered.filter((run, index) => index < shown || opened.has(run.id));
  const chip = (value, children, count) => h("button", { key: value ?? "all", type: "button", className: `btn${kind === value ? " on" : ""}`, "aria-pressed": kind === value, onClick: () => setKind(value) }, children, ` ${number(count)}`);
  const each = (run) => ({ key: run.id, run, opened: opened.has(run.id), toggle, task, may: view.may.feedback, mark });
  return h(
    "section",
    { "aria-label": "Attempts" },
    h("div", { className: "sec" }, h("h3", null, "Attempts"), h("span", { className: "sm muted" }, `${many ? "newest first. " : ""}Times are UTC. A row opens with Enter.`)),
    many &&
      h(
        "div",
        { className: "links", style: { margin: "4px 0" } },
        chip(null, "All", view.total_runs),
        chip("open", "Not recovered", view.runs.filter((run) => run.fault && run.ok !== true).length),
        view.classes.map((one) => chip(one.name, one.name, one.faults)),
      ),
    cards
      ? rows.map((run) => h(Card, each(run)))
      : h(
          "table",
          { className: "t", "aria-label": "Attempts of the chain" },
          h("thead", null, h("tr", null, ["#", "Started, ran", "Steps, nodes"].map((word) => h("th", { key: word, scope: "col" }, word)), h("th", { scope: "col" }, "Fault ", h("span", { style: { fontWeight: 400 } }, "(not a confirmed cause)")), ["What was done", "Outcome"].map((word) => h("th", { key: word, scope: "col" }, word)))),
          h("tbody", null, rows.map((run) => h(Row, each(run)))),
        ),
    ordered.length > rows.length &&
      h("p", { className: "links", style: { marginTop: 8 } }, h("span", { className: "muted" }, `${number(ordered.length - rows.length)} more`), h("button", { type: "button", className: "btn", onClick: () => setShown(shown + PAGE) }, `Show ${Math.min(PAGE, ordered.length - rows.length)} more`)),
    view.total_runs > view.runs.length && h("p", { className: "note" }, `The ${number(view.runs.length)} newest of ${number(view.total_runs)} runs. airflow ft chain shows all.`),
  );
}

/** A chain, by its task instance. Keyed by all of it: what comes late for another one is never shown. */
export function Chain({ task, own }) {
  useStyles();
  const box = useRef(null);
  const width = useWidth(box);
  const { data: view, error, at, again } = usePolled(chainPath(task));
  const [opened, setOpened] = useState(() => new Set(location.hash.startsWith("#attempt-") ? [fromHash()] : []));
  const toggle = (id, only) =>
    setOpened((before) => {
      const after = new Set(before);
      if (after.has(id) && !only) after.delete(id);
      else after.add(id);
      return after;
    });
  const openFromLane = (id) => {
    toggle(id, true);
    requestAnimationFrame(() => {
      const row = box.current?.querySelector(`[data-run="${id}"]`);
      row?.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
      row?.querySelector("button")?.focus({ preventScroll: true });
    });
  };
  const onKey = (event) => {
    const id = event.key === "Escape" && (event.target.closest("[data-run]")?.dataset.run ?? event.target.closest(".det")?.previousElementSibling?.dataset.run);
    if (!id || !opened.has(id)) return;
    toggle(id);
    document.getElementById(`ft-row-${id}`)?.focus();
  };
  const last = view?.runs.findLast?.((run) => run.fault)?.fault?.fault_class;
  return h(
    "div",
    { className: "ft", ref: box, onKeyDown: onKey, "data-state": view?.state },
    h("div", { className: "sr", role: "status" }, view ? `${stateWord(view.state)}${last ? `, last fault ${last}` : ""}` : ""),
    error && view && h("p", { className: "alert", role: "alert" }, `Could not be loaded anew: ${error.message} What you see is from ${clock(at / 1000)} UTC.`, h("button", { type: "button", className: "btn", onClick: again }, "Try again")),
    error && !view && h(Refusal, { error, task, again }),
    !error && !view && h("p", { className: "muted" }, "Loading the retry chain…"),
    view &&
      h(
        Fragment,
        null,
        h(Head, { view, task, at, own }),
        view.runs.length > 0 ? h(Chart, { view, open: openFromLane }) : h(Empty, { title: "No attempt yet" }, "The first one appears here when it is submitted."),
        view.runs.length > 0 && h(Runs, { view, task, opened, toggle, width, mark: view.runs[view.runs.length - 1].id + view.state }),
        view.marks.length > 0 && h("details", null, h("summary", null, `${view.marks.length} other events`), h("ul", { className: "list" }, view.marks.map((mark, n) => h("li", { key: n }, h("span", { className: "muted" }, `${moment(mark.at)}  `), mark.text)))),
        view.unreadable.length > 0 && h("p", { className: "note" }, `Records that can't be read: ${view.unreadable.join(", ")}.`),
        h("p", { className: "note" }, NOTE),
      ),
  );
}

const fromHash = () => {
  const [attempt, generation = "0"] = location.hash.slice("#attempt-".length).split("-");
  return `${attempt}-${generation}`;
};

/** What the host calls: a tab of a task instance. */
export function RetryChain({ dagId, runId, taskId, mapIndex }) {
  const index = Number.parseInt(mapIndex ?? "-1", 10);
  const map_index = Number.isNaN(index) ? -1 : index;
  const task = useMemo(() => ({ dag_id: dagId, run_id: runId, task_id: taskId, map_index }), [dagId, runId, taskId, map_index]);
  return h(Chain, { key: JSON.stringify(task), task });
}
