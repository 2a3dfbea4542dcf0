// How numbers, durations and times are written.

export const count = (n) => Math.round(n).toLocaleString("en");

export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

export const percent = (share) => `${Math.floor(share * 100)} %`;

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

// The two largest units.
export function duration(seconds) {
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const parts = [];
  let left = Math.round(seconds);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const n = Math.floor(left / length);
    left -= n * length;
    if (n || parts.length === 1) parts.push(`${n} ${unit}`);
  }
  return parts.slice(0, 2).join(" ").replace(/ 0 \w+$/, "");
}

// The agent's clock, as its answers show it, less ours; in milliseconds.
let ahead = 0;

export const now = () => Date.now() + ahead;

export function noteClock(date) {
  const at = Date.parse(date);
  if (!Number.isNaN(at) && Math.abs(at - now()) > 2000) ahead = at - Date.now();
}

export const secondsSince = (text) => Math.max(0, (now() - new Date(text).getTime()) / 1000);

export const utc = (at) => `${new Date(at).toISOString().slice(0, 19).replace("T", " ")}Z`;

export const ago = (text) => `${duration(Math.round(secondsSince(text))).replace(".0 s", " s")} ago`;

export const when = (text) => `${utc(text)}, ${ago(text)}`;
