// What is below the answers: plots, dumps, tables, position, lakes, manifests.

import { byId, element, keyed, list, plot, put, rows, set } from "./draw.js";
import { ago, count, duration, many, now, percent, when } from "./format.js";

const MOST_TABLES = 50;
const MOST_DUMPS = 10;
const LEAST_LAG = 10;
const ACTIVE = ["running", "paused", "queued"];

function showPlots(history) {
  const end = now() / 1000;
  const last = history[history.length - 1];
  byId("hour").hidden = !history.some((point) => point.lag_seconds != null);
  const most = plot("lag-plot", history, (point) => point.lag_seconds, end, LEAST_LAG);
  const rate = plot("rate-plot", history, (point) => point.rows_per_second, end, 1);
  set("lag-plot-text", `${last?.lag_seconds == null ? "unknown" : duration(last.lag_seconds)}; top of the plot ${duration(most)}`);
  set("rate-plot-text", `${last?.rows_per_second == null ? "unknown" : count(last.rows_per_second)} rows/s; top of the plot ${count(rate)}`);
}

function createDump(control) {
  const item = element("li");
  item.append(element("h3"), element("p", "", "soft"), element("progress"), element("p", "", "buttons"));
  for (const verb of ["pause", "resume", "cancel", "settings"]) {
    const button = element("button", verb[0].toUpperCase() + verb.slice(1));
    button.dataset.verb = verb;
    button.addEventListener("click", () => control(verb, item.dataset.key));
    item.lastElementChild.append(button);
  }
  return item;
}

function updateDump(item, dump, heldBack) {
  const [title, text, bar, buttons] = item.children;
  const share = dump.share ? ` ${percent(dump.share)}` : "";
  const why = dump.why && dump.why !== `held back: ${heldBack}` ? `, ${dump.why}` : "";
  const facts = [`${dump.kind === "full" ? "all rows" : dump.kind}, ${dump.reason}`, `${count(dump.rows)} rows in ${many(dump.chunks, "chunk")}`];
  if (dump.rows_per_second != null) facts.push(`${count(dump.rows_per_second)} rows/s`);
  if (dump.seconds_left != null) facts.push(`${duration(dump.seconds_left)} left`);
  if (dump.where) facts.push(`where ${dump.where}`);
  put(title, `${dump.table}: ${dump.state}${share}${why}`);
  put(text, `${facts.join("; ")}; dump ${dump.id}`);
  bar.hidden = !dump.share && dump.state !== "running";
  bar.setAttribute("aria-label", `share of dump ${dump.id}`);
  if (dump.share == null) bar.removeAttribute("value");
  else bar.value = dump.share;
  for (const button of buttons.children) {
    const verb = button.dataset.verb;
    button.hidden = (verb === "pause" && dump.state === "paused") || (verb === "resume" && dump.state !== "paused");
    button.setAttribute("aria-label", `${verb} dump ${dump.id} of ${dump.table}`);
  }
}

function showRejected(rejected) {
  byId("rejected").hidden = !rejected.length;
  if (!rejected.length) return;
  set("rejected-text", `${many(rejected.length, "request was", "requests were")} rejected, the last ${ago(rejected[0].finished_at)}`);
  list("rejected-requests", rejected.map((request) => `${when(request.finished_at)}, ${request.id}: ${request.why}`));
}

function showDumps(all, settings, control) {
  const dumps = all.filter((dump) => dump.state !== "rejected");
  showRejected(all.filter((dump) => dump.state === "rejected").reverse());
  const active = dumps.filter((dump) => ACTIVE.includes(dump.state));
  active.sort((a, b) => ACTIVE.indexOf(a.state) - ACTIVE.indexOf(b.state));
  keyed("dumps", active.slice(0, MOST_DUMPS), (dump) => dump.id, () => createDump(control),
    (item, dump) => updateDump(item, dump, settings.held_back));
  const more = active.length - MOST_DUMPS;
  set("more-dumps", more > 0 ? `${count(more)} more are unfinished; deltatide dumps lists all.` : active.length ? "" : "No dump is under way.");
  byId("held-back").hidden = !settings.held_back;
  set("held-back", `Dumps are held back: ${settings.held_back}`);
  const limit = settings.rows_per_second ? `${count(settings.rows_per_second)} rows/s` : "no limit of rows/s";
  set("settings", `${many(settings.workers, "worker")}, chunks of ${count(settings.chunk_rows)} rows, `
    + `pause of ${settings.delay_seconds} s after each, ${limit}${settings.pause_new ? "; new dumps begin paused" : ""}`);
  const finished = dumps.filter((dump) => !ACTIVE.includes(dump.state)).reverse();
  byId("finished").hidden = !finished.length;
  set("finished-text", many(finished.length, "finished dump"));
  rows("finished-dumps", finished.slice(0, MOST_TABLES), (dump) => dump.id, (dump) => [
    dump.table, dump.state + (dump.why ? `, ${dump.why}` : ""), count(dump.rows),
    dump.rows_per_second == null ? "" : count(dump.rows_per_second), dump.finished_at ? when(dump.finished_at) : "", dump.id,
  ]);
}

export function showTables({ status, rates }) {
  const wanted = byId("filter").value.toLowerCase();
  const all = Object.entries(status.tables).map(([name, table]) => ({ name, rate: rates?.[name] ?? 0, ...table }));
  const found = all.filter((table) => table.name.toLowerCase().includes(wanted));
  found.sort((a, b) => (b.state === "quarantined") - (a.state === "quarantined")
    || b.rate - a.rate || a.dumped - b.dumped);
  const shown = found.slice(0, MOST_TABLES);
  const which = found.length > shown.length ? `; of ${wanted ? `${count(found.length)} found` : "these"}, ${shown.length} are shown, the busiest first` : "";
  const quarantined = all.filter((table) => table.state === "quarantined").length;
  set("tables-text", `${many(all.length, "table")}${quarantined ? `, ${count(quarantined)} quarantined` : ""}${which}.`);
  byId("filter-line").hidden = all.length <= MOST_TABLES;
  rows("tables", shown, (table) => table.name, (table) =>
    [table.name, table.state, table.only_changes ? "only changes" : table.dumped ? "yes" : "no", rates ? count(table.rate) : ""]);
}

function showPosition(status, manifests, notices, gaps) {
  set("manifest", `${count(status.manifest)}, ${when(status.committed_at)}`);
  set("position", `${status.position}, epoch ${status.epoch}`);
  set("exact", status.exact ? "exact" : "not exact: a first dump, a repair or a quarantine is unfinished");
  byId("lakes-section").hidden = !status.lakes.length;
  rows("lakes", status.lakes.map((lake, n) => ({ ...lake, n })), (lake) => lake.n, (lake) =>
    [lake.lake, `${count(lake.manifest)}, ${count(Math.max(0, status.manifest - lake.manifest))} behind the newest`, when(lake.at)]);
  byId("verified-section").hidden = !status.verified.length;
  rows("verified", status.verified.map((lake, n) => ({ ...lake, n })), (lake) => lake.n, (lake) => [
    lake.lake, lake.share_last_day == null ? "nothing yet" : `${percent(lake.share_last_day)} of the rows`,
    lake.never_verified ? `not yet: ${many(lake.never_verified, "table")} of ${count(lake.tables)}` : when(lake.oldest_at),
    count(Object.values(lake.differences).reduce((a, b) => a + b, 0)),
  ]);
  rows("manifests", manifests, (m) => m.number, (m) => [
    count(m.number), when(m.committed_at), count(Object.values(m.rows).reduce((a, b) => a + b, 0)), count(Object.keys(m.rows).length), m.position,
    m.exact == null ? "" : m.exact ? "exact" : "not exact",
  ]);
  set("notices-text", notices.length ? `Schema changes and other events: ${notices.length}, the last ${ago(notices[0].at)}` : "Schema changes and other events: none lately");
  rows("notices", notices.map((notice, n) => ({ ...notice, n })), (notice) => notice.n, (notice) => [when(notice.at), notice.table ?? "all", notice.text]);
  byId("gaps-section").hidden = !gaps.length;
  set("gaps-text", `${many(gaps.length, "gap")} on record, the last ${gaps.length ? ago(gaps[gaps.length - 1].found_at) : ""}`);
  list("gaps", [...gaps].reverse().slice(0, MOST_TABLES).map((gap) => `before epoch ${gap.epoch}, found ${when(gap.found_at)}: ${gap.reason}`));
}

// `control(verb, dump)` is called by a dump's buttons.
export function showDetails(details, control) {
  byId("content").hidden = false;
  showPlots(details.history);
  showDumps(details.dumps, details.settings, control);
  showTables(details);
  showPosition(details.status, details.manifests, details.notices, details.gaps);
}
