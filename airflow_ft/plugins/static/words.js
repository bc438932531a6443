// Numbers and times as people read them. Sentences come from the server; times are UTC, as they are there.

export const number = (value) => (value == null ? "–" : value.toLocaleString("en-US"));
const iso = (seconds) => new Date(seconds * 1000).toISOString();
export const clock = (seconds) => iso(seconds).slice(11, 19);
export const minute = (seconds) => iso(seconds).slice(11, 16);
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
export const day = (seconds) => {
  const at = new Date(seconds * 1000);
  return `${at.getUTCDate()} ${MONTHS[at.getUTCMonth()]}`;
};
export const moment = (seconds) => `${day(seconds)} ${minute(seconds)}`;

/** A duration with at most two units: "12 m 47 s". */
export function duration(seconds) {
  let rest = Math.max(0, Math.round(seconds));
  const said = [];
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count) said.push(`${count} ${unit}`);
  }
  return said.slice(0, 2).join(" ") || "0 s";
}

export const steps = (value) => (value >= 1e6 ? `${+(value / 1e6).toFixed(2)}M` : value >= 1000 ? `${+(value / 1000).toFixed(1)}k` : `${value}`);

let context = null;
/** The width of a text in pixels. */
export function textWidth(text, font = "12px Inter, sans-serif") {
  context ??= document.createElement("canvas").getContext("2d");
  context.font = font;
  return context.measureText(text).width;
}
