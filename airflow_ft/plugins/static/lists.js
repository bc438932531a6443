// Rows of chains, and the tab "Retry chains" of a DAG run: those that need a person first.

import { Fragment, h, ownPage, taskPage, usePolled } from "./host.js";
import { Todo } from "./chain.js";
import { NOTE } from "./detail.js";
import { Empty, Refusal } from "./empty.js";
import { Badge, Chip, Pips, Shape } from "./signs.js";
import { useStyles } from "./styles.js";
import { clock, moment } from "./words.js";

const STRIP = 180;

/** A chain's life as a strip: its faults as marks on a bar. */
function Strip({ row, now, live }) {
  const to = live ? now : row.updated;
  const x = (at) => 4 + ((at - row.started) / Math.max(1, to - row.started)) * (STRIP - 18);
  return h(
    "svg",
    { width: STRIP, height: 20, viewBox: `0 0 ${STRIP} 20`, "aria-hidden": true },
    h("rect", { x: 4, y: 6, width: STRIP - 18, height: 8, fill: "var(--train)" }),
    row.marks.map(([at, kind], n) => h("g", { key: n }, h("circle", { cx: x(at), cy: 10, r: 7, fill: "var(--bg)" }), h(Shape, { kind, x: x(at), y: 10, r: 4.8 }))),
    live && h("path", { d: `M${STRIP - 14} 5l7 5 -7 5z`, fill: "var(--train)" }),
  );
}

const LIVE = ["starting", "running", "recovering", "recovered", "waits for a person"];
const taskName = (task) => `${task.task_id}${task.map_index >= 0 ? ` [${task.map_index}]` : ""}`;

export function ChainRows({ rows, now, everywhere }) {
  return h(
    "table",
    { className: "t rows", "aria-label": "Chains" },
    h("thead", null, h("tr", null, ["State", everywhere ? "Task, DAG, run" : "Task", "What happened", "Faults over time", "Restarts", "Last fault"].map((word) => h("th", { key: word, scope: "col" }, word)))),
    h(
      "tbody",
      null,
      rows.map((row) =>
        h(
          "tr",
          { className: "r", key: JSON.stringify(row.task), "data-chain": taskName(row.task) },
          h("td", null, h(Badge, { state: row.state, small: true })),
          h("td", { className: `who${everywhere ? " wide" : ""}` }, h("a", { className: "b", href: everywhere ? ownPage(row.task) : taskPage(row.task) }, taskName(row.task)), everywhere && h(Fragment, null, h("span", { className: "muted" }, " in "), row.task.dag_id, h("div", { className: "sm muted" }, `${row.task.run_id} · ${moment(row.started)}`))),
          h("td", null, row.headline),
          h("td", null, h(Strip, { row, now, live: LIVE.includes(row.state) })),
          h("td", { className: "nw" }, row.used[1] > 0 ? h(Fragment, null, h(Pips, { used: row.used }), `${row.used[0]}/${row.used[1]}`) : "off"),
          h("td", { className: "nw" }, row.last_class ? h(Chip, { kind: row.last_class }) : "–", row.last_node && h("div", { className: "sm muted" }, row.last_node)),
        ),
      ),
    ),
  );
}

/** What the host calls: a tab of a DAG run. */
export function RetryChains({ dagId, runId }) {
  useStyles();
  const path = `chains/${encodeURIComponent(dagId)}?run_id=${encodeURIComponent(runId)}`;
  const { data, error, at, again } = usePolled(path);
  return h(
    "div",
    { className: "ft" },
    error && data && h("p", { className: "alert", role: "alert" }, `Could not be loaded anew: ${error.message} What you see is from ${clock(at / 1000)} UTC.`, h("button", { type: "button", className: "btn", onClick: again }, "Try again")),
    error && !data && h(Refusal, { error, task: { dag_id: dagId }, again }),
    !error && !data && h("p", { className: "muted" }, "Loading the retry chains…"),
    data && data.items.length === 0 && h(Empty, { title: "No retry chain in this run" }, "None of its tasks is a FaultTolerantTrainingOperator, or none has begun."),
    data &&
      data.items.length > 0 &&
      h(
        Fragment,
        null,
        h("header", { className: "head plain" }, h("h2", null, data.headline), h("div", { className: "sub" }, data.sub)),
        h(Todo, { todo: data.todo }),
        h("div", { className: "sec" }, h("h3", null, "Chains"), h("span", { className: "sm muted" }, "the ones that need a person first; times are UTC")),
        h(ChainRows, { rows: data.items, now: data.now }),
        data.more && h("p", { className: "note" }, "There are more chains in this run; the page Fault tolerance has them all."),
        h("p", { className: "note" }, NOTE),
      ),
  );
}
