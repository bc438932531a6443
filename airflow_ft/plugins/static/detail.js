// An opened row: the fault in its context, the judgement, the decision, what became of it, and where to look next.

import { address, ask, chainPath, Fragment, h, useEffect, useState } from "./host.js";
import { Chip, Icon, Mark } from "./signs.js";
import { clock } from "./words.js";

const CLASSES = ["HW_NODE", "NET_FABRIC", "OOM_HOST", "OOM_GPU", "COMM_HANG", "APP_ERROR", "ENV_ERROR", "UNKNOWN"];
export const NOTE = "A class is a help for the decision. It is not a confirmed root cause.";

const Block = ({ title, aside, children }) =>
  h("div", { className: "blk" }, h("h4", null, title, aside && h("span", { style: { fontWeight: 400 } }, `  ${aside}`)), children);

/** Lines of a log: text and nothing else, whatever they contain; cut where they are long. */
const Line = ({ line, root }) =>
  h(
    "div",
    { className: root ? "root" : undefined },
    h("pre", null, `${line.at ? `${clock(line.at)}  ` : ""}${line.text}${line.cut ? "  … cut; the whole line is in the training log" : ""}`),
  );

function Evidence({ detail }) {
  const [first, ...others] = detail.evidence;
  return h(
    Fragment,
    null,
    first && h(Block, { title: "Root line", aside: first.line ? `${first.source}, line ${first.line}` : first.source }, h("div", { className: "log" }, h(Line, { line: first, root: true }))),
    others.length > 0 &&
      h(
        Block,
        { title: "Evidence", aside: "a root on the rank that stopped first wins" },
        h(
          "div",
          { className: "ev" },
          others.map((one, n) =>
            h(Fragment, { key: n }, h("span", { className: `role ${one.role}` }, one.role === "ambiguous" ? "unclear" : one.role), h("div", null, h("span", { className: "sm muted" }, `${one.source}  `), h("pre", { style: { display: "inline" } }, one.text))),
          ),
        ),
      ),
    detail.stacks.length > 0 && h(Block, { title: "Stacks", aside: "before anything was killed; equal ones together, odd ones first" }, detail.stacks.map((place, n) => h(Stack, { key: n, place }))),
    detail.preflight.length > 0 && h(Preflight, { items: detail.preflight }),
  );
}

const Stack = ({ place }) =>
  h(
    "div",
    { className: "stack", "data-odd": place.odd },
    h("div", { className: "sm" }, h("span", { className: "b" }, place.who), place.odd && h("span", { className: "warn" }, h(Icon, { name: "warn", size: 12 }), place.stopped ? " stopped (SIGSTOP)" : " not where the others are")),
    h("div", { className: "log" }, place.frames.length > 0 ? h("pre", { className: place.odd ? "root" : undefined }, place.frames.join("\n")) : h("pre", { className: "muted" }, "no stack could be read")),
  );

const Preflight = ({ items }) =>
  h(
    Block,
    { title: "Preflight", aside: "what did not hold; every item is a line of the training log" },
    h(
      "table",
      { className: "mini" },
      h("thead", null, h("tr", null, ["Item", "Found", "Needed", "Advice"].map((word) => h("th", { key: word, scope: "col" }, word)))),
      h("tbody", null, items.map((one, n) => h("tr", { key: n }, h("th", { scope: "row" }, h(Mark, { ok: one.status === "skipped" ? null : one.status === "ok" }), " ", one.item, one.where && h("div", { className: "muted", style: { fontWeight: 400 } }, `on ${one.where}`)), h("td", null, one.value), h("td", null, one.need), h("td", null, one.advice)))),
    ),
  );

const Recovery = ({ detail }) =>
  detail.recovery.length > 0 &&
  h(
    Block,
    { title: "Did training recover?" },
    h(
      "table",
      { className: "mini" },
      h("thead", null, h("tr", null, ["", "before", "after", "so"].map((word) => h("th", { key: word, scope: "col" }, word)))),
      h(
        "tbody",
        null,
        detail.recovery.map((row) =>
          h("tr", { key: row.what }, h("th", { scope: "row" }, row.what), h("td", null, row.before), h("td", null, row.after), h("td", null, h(Mark, { ok: row.ok }), " ", row.ok == null ? row.note || "not known" : row.note || (row.ok ? "yes" : "no"))),
        ),
      ),
    ),
    detail.recovery_line && h("pre", { className: "muted" }, detail.recovery_line),
  );

const Judgement = ({ detail }) =>
  h(
    Fragment,
    null,
    detail.fault_class &&
      h(
        Block,
        { title: "Class" },
        h("p", null, h(Chip, { kind: detail.fault_class, boxed: true }), h("span", { className: "sm muted" }, `  confidence ${detail.confidence.toFixed(2)}`)),
        h("ul", { className: "list" }, detail.why.map((why) => h("li", { key: why }, why))),
        h("p", { className: "note" }, NOTE),
      ),
    detail.second_class && h(Block, { title: "Also considered" }, h("p", { className: "sm" }, h(Chip, { kind: detail.second_class }), " came second")),
    detail.advice && h(Block, { title: "Advice" }, h("p", null, detail.advice)),
    detail.decision && h(DecisionBlock, { decision: detail.decision }),
    detail.changes.length > 0 && h(Block, { title: "What changed for the next run" }, h("ul", { className: "list" }, detail.changes.map((change) => h("li", { key: change }, change)))),
  );

const DecisionBlock = ({ decision }) =>
  h(
    Block,
    { title: "Decision", aside: `level ${decision.level}${decision.delay ? `, after ${decision.delay} s` : ""}` },
    h("p", { className: "b" }, decision.text),
    h("p", { className: "sm" }, decision.reason),
    h(
      "table",
      { className: "mini", style: { marginTop: 6 } },
      h("thead", null, h("tr", null, ["Ledger", "before", "after"].map((word) => h("th", { key: word, scope: "col" }, word)))),
      h(
        "tbody",
        null,
        decision.ledger.map((row) => {
          const of = row.maximum == null ? "" : `/${row.maximum}`;
          return h("tr", { key: row.name }, h("td", null, row.name), h("td", null, `${row.before}${of}`), h("td", { className: row.before === row.after ? undefined : "b" }, `${row.after}${of}${row.before === row.after ? "" : " ←"}`));
        }),
      ),
    ),
    decision.considered.length > 0 &&
      h("details", null, h("summary", null, `${decision.considered.length} rules were looked at`), h("ul", { className: "list" }, decision.considered.map((one, n) => h("li", { key: n }, h(Mark, { ok: one.applied }), ` ${one.rule}${one.why ? `: ${one.why}` : ""}`)))),
  );

function Feedback({ task, detail, may }) {
  const [given, setGiven] = useState(detail.feedback);
  const [asking, setAsking] = useState(false);
  const [right, setRight] = useState("");
  const [note, setNote] = useState("");
  const [trouble, setTrouble] = useState("");
  if (!detail.fault_class || detail.fault_class === "DISRUPTION") return null;
  const send = async (said) => {
    try {
      const answer = await ask(chainPath(task, `/runs/${detail.id}/feedback`), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(said) });
      setGiven(await answer.json());
      setAsking(false);
      setTrouble("");
    } catch (error) {
      setTrouble(error.message);
    }
  };
  const word = given && (given.right ? `Marked right by ${given.by}.` : `Marked wrong by ${given.by}${given.fault_class ? `: it was ${given.fault_class}` : ""}.${given.note ? ` ${given.note}` : ""}`);
  return h(
    "div",
    { className: "links", style: { marginTop: 12 }, role: "group", "aria-label": "Was this class right?" },
    h("span", { className: "sm muted" }, word || (may ? "Was this class right?" : "Nobody has judged this class yet.")),
    may && h("button", { type: "button", className: "btn", onClick: () => send({ right: true }) }, h(Icon, { name: "check", size: 12 }), "Right"),
    may && h("button", { type: "button", className: "btn", "aria-expanded": asking, onClick: () => setAsking(!asking) }, h(Icon, { name: "cross", size: 12 }), "Wrong…"),
    asking &&
      h(
        Fragment,
        null,
        h("select", { "aria-label": "The right class", value: right, onChange: (event) => setRight(event.target.value) }, h("option", { value: "" }, "not known"), CLASSES.filter((name) => name !== detail.fault_class).map((name) => h("option", { key: name, value: name }, name))),
        h("input", { "aria-label": "Note", placeholder: "why", maxLength: 500, value: note, onChange: (event) => setNote(event.target.value) }),
        h("button", { type: "button", className: "btn on", onClick: () => send({ right: false, fault_class: right || null, note }) }, "Save"),
      ),
    trouble && h("span", { className: "sm bad", role: "alert" }, trouble),
  );
}

export function Detail({ task, run, may, mark }) {
  const [got, setGot] = useState({ data: null, error: null });
  const path = chainPath(task, `/runs/${run.id}`);
  const [round, setRound] = useState(0);
  useEffect(() => {
    let over = false;
    ask(path).then((answer) => answer.json()).then(
      (data) => over || setGot({ data, error: null }),
      (error) => over || setGot((before) => ({ ...before, error })),
    );
    return () => {
      over = true;
    };
  }, [path, mark, round]);
  const detail = got.data;
  if (got.error && !detail)
    return h("p", { className: "alert", role: "alert" }, `The details could not be loaded: ${got.error.message}`, h("button", { type: "button", className: "btn", onClick: () => setRound(round + 1) }, "Try again"));
  if (!detail) return h("p", { className: "muted" }, "Loading…");
  return h(
    "div",
    { className: "opened" },
    h("p", { className: "dsum" }, detail.text),
    h("div", { className: "two" }, h("div", null, h(Evidence, { detail }), h(Recovery, { detail }), h(Block, { title: "Facts" }, h("dl", { className: "kv" }, detail.facts.map(([name, value]) => h(Fragment, { key: name }, h("dt", null, name), h("dd", null, value)))))), h("div", null, h(Judgement, { detail }))),
    h(Block, { title: "Where to look next" }, h("ul", { className: "list" }, detail.next.map((text) => h("li", { key: text }, text))), h("div", { className: "links", style: { marginTop: 6 } }, detail.links.map((link) => h("a", { key: link.text, className: "btn", href: address(link.href) }, link.text)))),
    h(Feedback, { key: detail.id, task, detail, may }),
  );
}
