// The look. Colours are the host's own variables, so that light and dark follow it; the layout follows the tab's width.

import { useLayoutEffect } from "./host.js";

const c = (name) => `var(--chakra-colors-${name})`;
const LIGHT = {
  bg: "#fff", "bg-subtle": c("gray-50"), "bg-muted": c("gray-100"), fg: "oklch(0.23185 0.0323 266.44)", "fg-muted": c("gray-600"),
  border: c("gray-200"), "border-strong": c("gray-300"), link: c("blue-600"), focus: c("blue-600"),
  train: c("brand-500"), again: c("brand-200"), line: c("brand-500"), wait: c("gray-500"), lost: "oklch(0.924 0.12 95.746 / .38)",
  ok: c("green-700"), "ok-bg": c("green-100"), "ok-fg": c("green-800"), bad: c("red-700"), "bad-bg": c("red-100"), "bad-fg": c("red-800"),
  "run-bg": c("cyan-100"), "run-fg": c("cyan-800"), "rec-bg": c("violet-100"), "rec-fg": c("violet-800"),
  warn: c("amber-800"), "warn-bg": c("amber-50"), "warn-bd": c("amber-400"), "on": c("brand-600"),
  "c-HW_NODE": c("orange-700"), "c-NET_FABRIC": c("purple-900"), "c-OOM_HOST": c("cyan-900"), "c-OOM_GPU": c("blue-600"),
  "c-COMM_HANG": c("amber-900"), "c-APP_ERROR": c("fuchsia-700"), "c-ENV_ERROR": c("emerald-700"), "c-UNKNOWN": c("gray-800"), "c-DISRUPTION": c("gray-600"),
};
const DARK = {
  bg: "oklch(0.23185 0.0323 266.44)", "bg-subtle": c("gray-900"), "bg-muted": c("gray-800"), fg: c("gray-50"), "fg-muted": c("gray-400"),
  border: c("gray-800"), "border-strong": c("gray-700"), link: c("blue-300"), focus: c("blue-300"),
  train: c("brand-400"), again: c("brand-700"), line: c("brand-300"), wait: c("gray-500"), lost: "oklch(0.769 0.188 70.08 / .15)",
  ok: c("green-300"), "ok-bg": c("green-900"), "ok-fg": c("green-200"), bad: c("red-300"), "bad-bg": "oklch(0.396 0.141 25.723 / .38)", "bad-fg": c("red-200"),
  "run-bg": c("cyan-900"), "run-fg": c("cyan-200"), "rec-bg": c("violet-900"), "rec-fg": c("violet-200"),
  warn: c("amber-300"), "warn-bg": "oklch(0.279 0.077 45.635 / .55)", "warn-bd": c("amber-600"), "on": c("brand-600"),
  "c-HW_NODE": c("orange-500"), "c-NET_FABRIC": c("purple-400"), "c-OOM_HOST": c("cyan-200"), "c-OOM_GPU": c("blue-300"),
  "c-COMM_HANG": c("yellow-400"), "c-APP_ERROR": c("rose-300"), "c-ENV_ERROR": c("lime-200"), "c-UNKNOWN": c("gray-500"), "c-DISRUPTION": c("gray-400"),
};
const variables = (set) => Object.entries(set).map(([name, value]) => `--${name}:${value}`).join(";");

const RULES = `
.ft{${variables(LIGHT)};container-type:inline-size;padding:14px 16px 28px;max-width:1440px;color:var(--fg);font-size:14px;line-height:20px;font-feature-settings:"tnum" 1;text-align:left}
.dark .ft{${variables(DARK)}}
.ft *{box-sizing:border-box}.ft h2,.ft h3,.ft h4,.ft p,.ft ul,.ft dl,.ft dd,.ft dt{margin:0;padding:0}.ft ul{list-style:none}
.ft a{color:var(--link);text-decoration:none}.ft a:hover{text-decoration:underline}
.ft :focus-visible{outline:2px solid var(--focus);outline-offset:2px;border-radius:4px}
.ft .mono,.ft pre{font-family:SFMono-Regular,Menlo,Monaco,Consolas,"Liberation Mono","Courier New",monospace;font-size:12px;line-height:18px;font-feature-settings:normal;white-space:pre-wrap;overflow-wrap:anywhere;margin:0}
.ft .muted{color:var(--fg-muted)}.ft .nw{white-space:nowrap}.ft .b{font-weight:600}.ft .ok{color:var(--ok)}.ft .bad{color:var(--bad)}.ft .warn{color:var(--warn)}
.ft .lab{font-size:12px;line-height:18px;font-weight:600;color:var(--fg-muted)}.ft .sm{font-size:12px;line-height:18px}
.ft svg{display:block}.ft .ic{display:inline-block;vertical-align:-2px;flex:none}.ft .bar{margin-right:6px;vertical-align:-1px}
.ft .sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
.ft .head{display:flex;flex-wrap:wrap;gap:4px 12px;align-items:center;justify-content:space-between}
.ft .head h2{flex:1 0 100%;display:flex;gap:4px 10px;align-items:flex-start;font-size:18px;line-height:26px;font-weight:600;text-wrap:pretty;overflow-wrap:anywhere}
.ft .head.plain h2{flex:1 1 280px}.ft .head.plain .sub{flex:1 0 100%}
.ft .sub{font-size:13px;line-height:20px;color:var(--fg-muted);flex:1 1 420px}
.ft .tools{display:flex;gap:6px;align-items:center;flex-wrap:wrap}
.ft .badge{display:inline-flex;align-items:center;gap:6px;border-radius:999px;padding:0 10px 0 8px;font-weight:600;font-size:14px;line-height:26px;white-space:nowrap;flex:none}
.ft .badge.small{font-size:12px;line-height:20px;padding:0 8px 0 6px;gap:4px}
.ft .s-running{background:var(--run-bg);color:var(--run-fg)}.ft .s-recovering{background:var(--rec-bg);color:var(--rec-fg)}
.ft .s-good{background:var(--ok-bg);color:var(--ok-fg)}.ft .s-stopped{background:${c("red-700")};color:#fff}.ft .s-waits{background:var(--warn-bg);color:var(--warn);box-shadow:inset 0 0 0 1px var(--warn-bd)}.ft .s-failed{background:var(--bad-bg);color:var(--bad-fg)}
.ft .btn,.ft select,.ft input{border:1px solid var(--border-strong);border-radius:4px;padding:0 10px;height:28px;min-width:0;font:inherit;font-size:12px;line-height:18px;font-weight:500;display:inline-flex;gap:6px;align-items:center;color:var(--fg);background:var(--bg);cursor:pointer}
.ft select{padding:0 6px}.ft input{cursor:text}
.ft .btn:hover{background:var(--bg-muted);text-decoration:none}.ft .btn.on{background:var(--on);border-color:var(--on);color:#fff}
.ft .todo{margin-top:8px;border-left:3px solid var(--border-strong);background:var(--bg-subtle);padding:6px 12px;border-radius:0 4px 4px 0;text-wrap:pretty;overflow-wrap:anywhere}
.ft .todo.t-warn{border-color:var(--warn-bd);background:var(--warn-bg)}.ft .todo.t-bad{border-color:var(--bad);background:var(--bad-bg)}
.ft .answers{display:grid;grid-template-columns:repeat(3,minmax(0,1fr));margin-top:10px;border:1px solid var(--border);border-radius:6px;overflow:hidden}
.ft .ans{padding:7px 12px 8px;border-left:1px solid var(--border);border-top:1px solid var(--border);margin:-1px 0 0 -1px;min-width:0}
.ft .ans .v{font-weight:600;line-height:20px;overflow-wrap:anywhere}.ft .ans .d{font-size:12px;line-height:17px;color:var(--fg-muted);overflow-wrap:anywhere}
.ft .pips{display:inline-flex;gap:3px;vertical-align:-1px;margin-right:6px}.ft .pips i{width:9px;height:12px;border-radius:2px;border:1.5px solid var(--fg-muted)}.ft .pips i.u{background:var(--fg-muted)}.ft .pips i.x{border-color:var(--bad);background:var(--bad)}
.ft .chk{display:flex;flex-wrap:wrap;column-gap:10px}.ft .chk span{white-space:nowrap}.ft .chk .sr{position:absolute}
.ft .chip{display:inline-flex;vertical-align:bottom;align-items:center;gap:5px;font-weight:600;font-size:12px;line-height:18px;white-space:nowrap;font-feature-settings:normal}
.ft .chip.box{border:1.5px solid currentColor;border-radius:4px;padding:1px 7px}
.ft .sec{display:flex;align-items:center;gap:8px 16px;flex-wrap:wrap;margin:16px 0 4px}.ft .sec h3{font-size:14px;line-height:20px;font-weight:600}
.ft .sec .grow{flex:1}
.ft .legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:12px;line-height:18px;color:var(--fg-muted)}.ft .legend span{display:inline-flex;gap:5px;align-items:center;white-space:nowrap}
.ft .chart{position:relative}.ft .chart svg{overflow:visible}.ft .chart text{font-family:inherit}
.ft .lane{cursor:pointer}.ft .lane:focus-visible{outline:none}.ft .lane:focus-visible .hit,.ft .lane:hover .hit{fill:var(--bg-subtle)}.ft .lane:focus-visible .hit{stroke:var(--focus);stroke-width:2}
.ft .tip{position:absolute;pointer-events:none;background:var(--fg);color:var(--bg);font-size:12px;line-height:17px;padding:5px 8px;border-radius:4px;white-space:nowrap;z-index:3}
.ft table.t{width:100%;border-collapse:collapse;font-size:13px;line-height:18px}
.ft .t th{font-weight:600;font-size:12px;text-align:left;color:var(--fg-muted);padding:6px 8px;border-bottom:1px solid var(--border-strong);white-space:nowrap}
.ft .t td{padding:7px 8px;border-bottom:1px solid var(--border);vertical-align:top;overflow-wrap:anywhere}.ft .t td:first-child,.ft .t th:first-child{padding-left:4px}
.ft .t .who{min-width:90px}.ft .t .who.wide{min-width:210px}.ft .t tr.r:hover td{background:var(--bg-subtle)}.ft .t tr.open td{background:var(--bg-subtle);border-bottom-color:transparent}.ft .t tr.det>td{background:var(--bg-subtle);padding:2px 12px 16px}
.ft .quar{min-width:250px;max-width:420px}.ft .kept+.kept{margin-top:8px}.ft .kept .links,.ft .ask{margin-top:3px}.ft .ask input{width:130px}.ft .btn:disabled{opacity:.6;cursor:default}
.ft .exp{display:inline-flex;gap:4px;align-items:center;font:inherit;font-weight:600;white-space:nowrap;padding:3px 4px;margin:-3px 0;min-height:24px;background:none;border:0;color:inherit;cursor:pointer}
.ft .card{border:1px solid var(--border);border-radius:6px;padding:7px 10px;margin-top:8px;font-size:13px;line-height:18px;display:grid;gap:2px;overflow-wrap:anywhere}.ft .card.open{background:var(--bg-subtle)}
.ft .card .top{display:flex;gap:6px 10px;flex-wrap:wrap;align-items:center}
.ft .dsum{font-size:15px;line-height:22px;font-weight:600;margin:4px 0 2px;text-wrap:pretty;overflow-wrap:anywhere}
.ft .two{display:grid;grid-template-columns:minmax(0,1.55fr) minmax(0,1fr);gap:4px 20px}
.ft .blk{margin-top:12px;min-width:0}.ft .blk>h4{font-size:12px;line-height:18px;font-weight:600;color:var(--fg-muted);margin-bottom:3px}
.ft .log{background:var(--bg);border:1px solid var(--border);border-radius:4px;padding:4px 0}.ft .log>div{padding:0 8px}
.ft .log .root{background:var(--warn-bg);box-shadow:inset 3px 0 0 var(--warn-bd);font-weight:700}
.ft .stack+.stack{margin-top:6px}.ft .log pre{padding:0 8px}.ft .log>div>pre{padding:0}
.ft .ev{display:grid;grid-template-columns:74px minmax(0,1fr);gap:2px 8px;font-size:13px;line-height:18px;align-items:baseline}.ft .ev>*{padding:2px 0}
.ft .role{font-size:11px;line-height:16px;font-weight:600;border-radius:3px;padding:0 5px;text-align:center;border:1px solid var(--border-strong)}.ft .role.root{background:var(--fg);color:var(--bg);border-color:var(--fg)}.ft .role.cascade{border-style:dashed}
.ft .list li{padding:2px 0;font-size:13px;line-height:18px;overflow-wrap:anywhere}
.ft .kv{display:grid;grid-template-columns:auto minmax(0,1fr);gap:1px 10px;font-size:13px;line-height:19px;overflow-wrap:anywhere}.ft .kv dt{color:var(--fg-muted)}
.ft .mini{width:100%;border-collapse:collapse;font-size:13px;line-height:18px;background:var(--bg);border:1px solid var(--border)}.ft .mini th,.ft .mini td{padding:3px 8px;text-align:left;border-bottom:1px solid var(--border);vertical-align:top;overflow-wrap:break-word}.ft .mini td:last-child{overflow-wrap:anywhere;min-width:110px}.ft .mini th{font-size:12px;color:var(--fg-muted);font-weight:600}
.ft .note{font-size:12px;line-height:17px;color:var(--fg-muted);border:1px dashed var(--border-strong);border-radius:4px;padding:5px 8px;margin-top:8px}
.ft .links{display:flex;flex-wrap:wrap;gap:6px;align-items:center}
.ft .empty{border:1px solid var(--border);border-radius:6px;padding:18px 20px;display:grid;gap:6px;max-width:640px;justify-items:start}.ft .empty h2{font-size:15px;font-weight:600}
.ft .alert{border:1px solid var(--warn-bd);background:var(--warn-bg);border-radius:4px;padding:6px 12px;margin-bottom:8px;display:flex;gap:8px;align-items:center;flex-wrap:wrap}
.ft .stats{display:grid;grid-template-columns:repeat(6,minmax(0,1fr));border:1px solid var(--border);border-radius:6px;margin-top:10px}.ft .stats>div{padding:8px 12px;border-left:1px solid var(--border)}.ft .stats>div:first-child{border-left:0}.ft .stats .n{font-size:20px;line-height:26px;font-weight:600}
.ft details summary{cursor:pointer;font-size:12px;line-height:24px;font-weight:600;color:var(--fg-muted)}
@container (max-width:1000px){.ft .hide-m{display:none}}
@container (max-width:780px){.ft .answers{grid-template-columns:repeat(2,minmax(0,1fr))}.ft .two{grid-template-columns:minmax(0,1fr)}.ft .stats{grid-template-columns:repeat(3,minmax(0,1fr))}}
@container (max-width:720px){.ft .rows thead{display:none}.ft .rows,.ft .rows tbody{display:block}.ft .rows tr{display:flex;flex-wrap:wrap;gap:2px 12px;padding:8px 4px;border-bottom:1px solid var(--border)}.ft .rows td{border:0;padding:0;display:block;max-width:100%}.ft .rows td svg{max-width:100%}}
@container (max-width:560px){.ft .hide-n{display:none}.ft .head h2{font-size:17px;line-height:23px;flex-direction:column}.ft .answers{grid-template-columns:minmax(0,1fr)}.ft .ans{display:grid;grid-template-columns:74px minmax(0,1fr);gap:0 6px;padding:5px 8px 6px}.ft .stats{grid-template-columns:repeat(2,minmax(0,1fr))}.ft .todo{padding:6px 10px}}
@media (prefers-reduced-motion:no-preference){.ft .pulse{animation:ft-pulse 2s infinite}@keyframes ft-pulse{50%{opacity:.45}}}
`;

/** Put the rules into the page, once. */
export function useStyles() {
  useLayoutEffect(() => {
    if (document.getElementById("airflow-ft-styles")) return;
    const style = document.createElement("style");
    style.id = "airflow-ft-styles";
    style.textContent = RULES;
    document.head.append(style);
  }, []);
}
