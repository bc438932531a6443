// What is shown where there is nothing: each says why, and what would change it.

import { h } from "./host.js";

export const Empty = ({ title, children, action }) => h("section", { className: "empty" }, h("h2", null, title), h("p", { className: "muted" }, children), action);

/** The server had no chain to show. */
export function Refusal({ error, task, again }) {
  const retry = h("button", { type: "button", className: "btn", onClick: again }, "Try again");
  if (error.status === 401) return h(Empty, { title: "You are not logged in" }, "Log in to Airflow, then open this page again.");
  if (error.status === 403) return h(Empty, { title: "You may not read this DAG" }, `Reading a retry chain needs the right to read the task instances of ${task.dag_id}.`);
  if (error.reason === "not_begun") return h(Empty, { title: "The chain has not begun" }, "Attempt 0 appears here when the task starts; this page updates by itself.");
  if (error.status === 404) return h(Empty, { title: "This task has no fault tolerance" }, "It is no FaultTolerantTrainingOperator, or it has never begun, so there is no retry chain. Airflow's own tries are in the tab Logs.");
  if (error.reason === "unreadable") return h(Empty, { title: "The record can't be read here" }, `${error.message} Use airflow ft chain on a worker.`);
  return h(Empty, { title: "The chain could not be loaded", action: retry }, error.message);
}
