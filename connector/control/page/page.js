"use strict";

// The status page. All text of databases and requests goes in as text (textContent), never as markup.
// What is shown is updated in place, so that focus and open dialogs stay.

const POLL_MS = 2000;
const MOST_TABLES = 200;
const TOKEN = "deltatide-token";

const byId = (id) => document.getElementById(id);
const set = (id, text) => { const it = byId(id); if (it.textContent !== text) it.textContent = text; };

class ApiError extends Error {
  constructor(status, body) {
    super(body.error + (body.hint ? ` (${body.hint})` : ""));
    this.status = status;
  }
}

async function ask(path, body) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = body === undefined ? { headers } : {
    method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch(`api/${path}`, options);
  const found = await answer.json();
  if (!answer.ok) throw new ApiError(answer.status, found);
  return found;
}

// ---- formats

const count = (n) => Math.round(n).toLocaleString("en");

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; n >= 1024 && unit < units.length - 1; unit++) n /= 1024;
  return `${n >= 100 || unit === 0 ? Math.round(n) : n.toFixed(1)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const parts = [];
  let left = Math.round(seconds);
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const n = Math.floor(left / length);
    left -= n * length;
    if (n) parts.push(`${n} ${unit}`);
  }
  return parts.slice(0, 2).join(" ");
}

function when(text) {
  const at = new Date(text);
  const ago = Math.max(0, (Date.now() - at.getTime()) / 1000);
  return `${at.toISOString().slice(0, 19).replace("T", " ")}Z, ${duration(ago)} ago`;
}

// ---- elements

function element(tag, text = "", className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Make the children of `parent` those of `items`, in order; `update(child, item)` fills in a child.
function keyed(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = known.get(key);
    known.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const gone of known.values()) gone.remove();
}

function cells(row, texts) {
  texts.forEach((text, n) => {
    const cell = row.children[n] ?? row.appendChild(element("td"));
    if (cell.textContent !== text) cell.textContent = text;
  });
}

const rows = (id, items, keyOf, textsOf) =>
  keyed(byId(id), items, keyOf, () => element("tr"), (row, item) => cells(row, textsOf(item)));

// ---- what is shown

function showAgent(agent) {
  const good = { active: "good", stuck: "bad" };
  set("source", agent.source);
  set("state", agent.state);
  byId("state").className = `badge ${good[agent.state] ?? "warn"}`;
  set("version", `version ${agent.version}`);
  document.title = `${agent.source}: ${agent.state}`;
}

function showStatus(status, history) {
  const figures = status.figures;
  set("holder", `${status.source}; active: ${status.agent}`);
  set("lag", figures.lag_seconds == null ? "unknown" : duration(figures.lag_seconds));
  set("lag-bytes", figures.lag_bytes == null ? "unknown" : bytes(figures.lag_bytes));
  const last = history[history.length - 1];
  set("rate", last?.rows_per_second == null ? "unknown" : `${count(last.rows_per_second)} rows/s`);
  set("manifest", `${status.manifest}, ${when(status.committed_at)}`);
  set("position", `${status.position}, epoch ${status.epoch}`);
  set("exact", status.exact ? "exact" : "not exact yet");
}

function showProblems(agent, status, gaps, settings) {
  const problems = [];
  if (agent.state === "stuck") problems.push("The capture loop has not gone around for too long: see the agent's log.");
  if (settings.held_back) problems.push(`Dumps hold back: ${settings.held_back}`);
  for (const [name, table] of Object.entries(status.tables)) {
    if (table.state === "quarantined") {
      problems.push(`${name} is quarantined: ${table.reason}. ${table.hint ? `To go on: ${table.hint}` : ""}`);
    }
  }
  for (const gap of [...gaps].reverse().slice(0, 10)) {
    problems.push(`Gap before epoch ${gap.epoch}, found ${when(gap.found_at)}: ${gap.reason}`);
  }
  byId("attention").hidden = !problems.length;
  keyed(byId("problems"), problems.map((text, n) => ({ text, n })), (p) => p.n,
    () => element("li"), (item, p) => { if (item.textContent !== p.text) item.textContent = p.text; });
}

function showPlot(history) {
  const known = history.filter((point) => point.lag_seconds != null);
  if (!known.length) return set("plot-text", "Nothing measured yet.");
  const end = known[known.length - 1].at;
  const most = Math.max(1, ...known.map((point) => point.lag_seconds));
  const points = known.map((point) =>
    `${(600 - ((end - point.at) / 3600) * 600).toFixed(1)},${(115 - (point.lag_seconds / most) * 110).toFixed(1)}`);
  byId("plot-line").setAttribute("points", points.join(" "));
  const now = known[known.length - 1].lag_seconds;
  set("plot-text", `From 0 to ${duration(most)}; now ${duration(now)}; ${known.length} points, one every ten seconds.`);
}

function createDump() {
  const item = element("li");
  item.append(element("h3"), element("p", "", "soft"), element("progress"), element("p"));
  const buttons = item.lastElementChild;
  for (const verb of ["pause", "resume", "cancel", "settings"]) {
    const button = element("button", verb[0].toUpperCase() + verb.slice(1));
    button.dataset.verb = verb;
    button.addEventListener("click", () => controlDump(verb, item.dataset.key));
    buttons.append(button, " ");
  }
  return item;
}

function updateDump(item, dump) {
  const [title, text, bar, buttons] = item.children;
  const facts = [dump.kind, dump.reason, `${count(dump.rows)} rows`, `${dump.chunks} chunks`];
  if (dump.share != null) facts.push(`${Math.round(dump.share * 100)} %`);
  if (dump.rows_per_second != null) facts.push(`${count(dump.rows_per_second)} rows/s`);
  if (dump.seconds_left != null) facts.push(`${duration(dump.seconds_left)} left`);
  if (dump.where) facts.push(`where ${dump.where}`);
  title.textContent = `${dump.table}: ${dump.state}${dump.why ? `, ${dump.why}` : ""}`;
  text.textContent = `${dump.id}; ${facts.join(", ")}`;
  const active = ["queued", "running", "paused"].includes(dump.state);
  bar.hidden = !active;
  bar.setAttribute("aria-label", `share of dump ${dump.id}`);
  if (dump.share == null) bar.removeAttribute("value");
  else bar.value = dump.share;
  buttons.hidden = !active;
  for (const button of buttons.querySelectorAll("button")) {
    const verb = button.dataset.verb;
    button.hidden = (verb === "pause" && dump.state === "paused") || (verb === "resume" && dump.state !== "paused");
    button.setAttribute("aria-label", `${verb} dump ${dump.id}`);
  }
}

function showDumps(dumps, settings) {
  const newest = [...dumps].reverse();
  keyed(byId("dumps"), newest, (dump) => dump.id, createDump, updateDump);
  byId("no-dumps").hidden = dumps.length > 0;
  const limit = settings.rows_per_second ? `${count(settings.rows_per_second)} rows/s` : "no limit";
  set("settings", `${settings.workers} workers, chunks of ${count(settings.chunk_rows)} rows, `
    + `pause ${settings.delay_seconds} s, ${limit}${settings.pause_new ? "; new dumps begin paused" : ""}`);
}

function showTables(tables) {
  const all = Object.entries(tables).map(([name, table]) => ({ name, ...table }));
  all.sort((a, b) => (b.state === "quarantined") - (a.state === "quarantined") || b.rows_per_second - a.rows_per_second);
  const shown = all.slice(0, MOST_TABLES);
  set("tables-text", `${all.length} tables${all.length > shown.length ? `, the busiest ${shown.length} shown` : ""}.`);
  rows("tables", shown, (table) => table.name, (table) =>
    [table.name, table.state, table.dumped ? "yes" : "no", count(table.rows_per_second)]);
}

function showManifests(manifests) {
  rows("manifests", manifests, (m) => m.number, (m) => [
    String(m.number), when(m.committed_at), count(Object.values(m.rows).reduce((a, b) => a + b, 0)),
    String(Object.keys(m.rows).length), m.position, m.notices.map((n) => `${n.table ?? ""} ${n.text}`.trim()).join("; "),
  ]);
}

function showLakes(lakes) {
  byId("lakes-section").hidden = !lakes.length;
  rows("lakes", lakes.map((lake, n) => ({ ...lake, n })), (lake) => lake.n, (lake) => [lake.lake, String(lake.manifest), when(lake.at)]);
}

// ---- what is asked for

async function request(verb, body, text) {
  try {
    await ask(verb, body);
    set("message", `Requested: ${text}. It takes effect with the next chunk.`);
    await refresh();
  } catch (error) {
    set("message", `Not requested: ${error.message}`);
  }
}

function controlDump(verb, dump) {
  if (verb === "settings") return openSettings(dump);
  if (verb === "cancel" && !confirm(`Cancel dump ${dump}? What it has landed stays.`)) return undefined;
  return request(verb, { dump }, `${verb} dump ${dump}`);
}

function openSettings(dump) {
  const dialog = byId("settings-dialog");
  byId("settings-form").reset();
  set("settings-title", dump ? `Settings of dump ${dump}` : "Settings of all dumps");
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue !== "set") return;
    const form = new FormData(byId("settings-form"));
    const given = ["chunk_rows", "workers", "delay_seconds", "rows_per_second"].filter((name) => form.get(name) !== "");
    const settings = Object.fromEntries(given.map((name) => [name, Number(form.get(name))]));
    const body = { settings, defaults: form.has("defaults"), ...(dump ? { dump } : {}) };
    request("set", body, `settings of ${dump ? `dump ${dump}` : "all dumps"}`);
  };
  dialog.showModal();
}

// ---- the course

async function refresh() {
  const agent = await ask("agent");
  showAgent(agent);
  const [status, dumps, settings, tables, gaps, manifests, history] = await Promise.all(
    ["status", "dumps", "settings", "tables", "gaps", "manifests?limit=15", "history"].map((path) => ask(path)));
  byId("content").hidden = false;
  byId("token-form").hidden = true;
  showStatus(status, history);
  showProblems(agent, status, gaps, settings);
  showPlot(history);
  showDumps(dumps, settings);
  showTables(tables);
  showManifests(manifests);
  showLakes(status.lakes);
}

let failed = false;

async function poll() {
  try {
    if (!document.hidden) await refresh();
    if (failed) set("message", "");
    failed = false;
  } catch (error) {
    failed = true;
    if (error.status === 401) byId("token-form").hidden = false;
    const known = error instanceof ApiError;
    set("message", known ? error.message : "The agent does not answer; what is shown may be old.");
    if (!known) {
      set("state", "unreachable");
      console.error(error);
    }
  }
  setTimeout(poll, POLL_MS);
}

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value);
  byId("token").value = "";
});
byId("pause-all").addEventListener("click", () => request("pause", { all: true }, "pause all dumps, also those queued later"));
byId("resume-all").addEventListener("click", () => request("resume", { all: true }, "resume all dumps"));
byId("set-all").addEventListener("click", () => openSettings(null));
poll();
