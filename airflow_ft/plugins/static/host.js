// What the host gives (React, its base address; its Chakra theme is in `styles`), and how this plugin talks to its API.
// No build step: these modules are what the browser loads, on the host's own React.

const { React } = globalThis;
export const { useEffect, useId, useLayoutEffect, useMemo, useRef, useState } = React;
export const h = React.createElement;
export const Fragment = React.Fragment;

const LIVE_SECONDS = 5;
const HIDDEN_SECONDS = 30;
const RETRY_SECONDS = 15;

export const base = () =>
  new URL(document.querySelector("head > base")?.getAttribute("href") ?? "/", location.origin).pathname.replace(/\/$/, "");
export const address = (path) => `${base()}/${path}`;
const api = (path) => address(`fault-tolerance/api/v1/${path}`);
export const query = (values) =>
  new URLSearchParams(Object.entries(values).filter(([, value]) => value != null && value !== "")).toString();

/** The address of a task instance's part of the API: `kind` is "", "/markdown", "/runs/0-0" … */
export const chainPath = (task, kind = "") =>
  `chain/${encodeURIComponent(task.dag_id)}${kind}?${query({ run_id: task.run_id, task_id: task.task_id, map_index: task.map_index })}`;
export const taskPage = (task) => {
  const [dag, run, name] = [task.dag_id, task.run_id, task.task_id].map(encodeURIComponent);
  return address(`dags/${dag}/runs/${run}/tasks/${name}${task.map_index >= 0 ? `/mapped/${task.map_index}` : ""}/plugin/retry-chain`);
};
export const ownPage = (task) => address(`plugin/fault-tolerance?${query(task)}`);

/** An answer that is none: what the server said of it, for a friendly page. */
export class Refused extends Error {
  constructor(status, detail, reason) {
    super(detail || `The server answered ${status}.`);
    Object.assign(this, { status, reason });
  }
}

async function refusal(answer) {
  let said = {};
  try {
    said = await answer.json();
  } catch {
    /* no JSON: the status says enough */
  }
  const detail = said.detail?.detail ?? said.detail;
  const words = Array.isArray(detail) ? detail.map((one) => `${one.loc?.at(-1)}: ${one.msg}.`).join(" ") : detail;
  return new Refused(answer.status, typeof words === "string" ? words : "", said.detail?.reason);
}

export async function ask(path, options = {}) {
  const answer = await fetch(api(path), { credentials: "same-origin", ...options });
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/**
 * Look at a part of the API again and again: every 5 s while it is live, every 30 s while nobody sees the page, never
 * when it is over. An error keeps what is there. An answer that comes late, for another address, is dropped.
 */
export function usePolled(path, isLive = (data) => data.live) {
  const [got, setGot] = useState({ path: null, data: null, error: null, at: 0 });
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (path == null) return undefined;
    const stop = new AbortController();
    let timer = null;
    let tag = null;
    let last = null;
    const later = (seconds) => {
      clearTimeout(timer);
      timer = setTimeout(look, 1000 * seconds);
    };
    const pause = () => (document.hidden ? HIDDEN_SECONDS : LIVE_SECONDS);
    async function look() {
      try {
        const answer = await fetch(api(path), {
          credentials: "same-origin",
          cache: "no-store",
          headers: tag ? { "If-None-Match": tag } : {},
          signal: stop.signal,
        });
        if (answer.status !== 304) {
          if (!answer.ok) throw await refusal(answer);
          last = await answer.json();
          tag = answer.headers.get("ETag");
        }
        if (stop.signal.aborted) return;
        setGot({ path, data: last, error: null, at: Date.now() });
        if (isLive(last)) later(pause());
      } catch (error) {
        if (stop.signal.aborted) return;
        setGot((before) => ({ path, data: before.path === path ? before.data : null, error, at: before.path === path ? before.at : 0 }));
        // What a person has to change first isn't asked again and again; what may pass by itself is.
        if (!(error instanceof Refused) || error.status >= 500 || error.reason === "not_begun") later(document.hidden ? HIDDEN_SECONDS : RETRY_SECONDS);
      }
    }
    const seen = () => {
      if (!document.hidden && last && isLive(last)) look();
    };
    document.addEventListener("visibilitychange", seen);
    look();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path, round]);
  const mine = got.path === path ? got : { data: null, error: null, at: 0 };
  return { ...mine, again: () => setRound((n) => n + 1) };
}

/** The width of an element, kept up to date: the layout follows the tab, never the window. */
export function useWidth(ref) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (!ref.current) return undefined;
    const look = () => ref.current && setWidth(Math.floor(ref.current.clientWidth));
    look();
    const observer = new ResizeObserver(look);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** Copy a text, also where the page isn't served by HTTPS and the browser has no clipboard for it. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
