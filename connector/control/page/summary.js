// The page's first three answers: is it running, how far behind, what needs you.

import { byId, element, keyed, put, set } from "./draw.js";
import { ago, bytes, count, duration, many, secondsSince, utc } from "./format.js";

const BRIEF = 5; // seconds that a retry may take
const SOON = 30; // seconds that a disturbance may last before it needs anybody
const RECENT = 86400; // seconds for which what happened is news
const LATE = 60;
const VERY_LATE = 900;
const MOST_PROBLEMS = 20;

// The seconds that lag has changed by in the last ten minutes, and in how many minutes; null if not known.
function courseOf(history) {
  const points = history.filter((point) => point.lag_seconds != null);
  const last = points[points.length - 1];
  const before = points.find((point) => last.at - point.at <= 600);
  if (!last || before === last) return null;
  return { change: last.lag_seconds - before.lag_seconds, minutes: Math.max(1, Math.round((last.at - before.at) / 60)) };
}

// Each is { text, hint }. `details` may be null: not known yet.
function problemsOf(agent, details) {
  const found = [];
  const add = (text, hint = "") => found.push({ text, hint });
  if (agent.state === "stuck") add("The capture loop is stuck.", "check the agent's log, and restart it");
  if (agent.store_failing_seconds > SOON) {
    add(`The landing zone's store has not answered for ${duration(agent.store_failing_seconds)}.`,
      "the agent continues once it does; deltatide check says what is wrong");
  }
  if (agent.log_lost_seconds > SOON) {
    add(`The source's log can't be read for ${duration(agent.log_lost_seconds)}.`,
      "the agent continues once it can; its log and deltatide check say what is wrong");
  }
  const lag = agent.figures?.lag_seconds;
  const course = courseOf(details?.history ?? []);
  if (!found.length && lag > VERY_LATE && course?.change > 0) {
    add(`Landing is falling behind: ${duration(lag)} behind, ${duration(course.change)} more than ${course.minutes} minutes ago.`,
      "pause or slow down dumps, and look at the load of the source, of this machine, and of the store");
  }
  for (const [name, table] of Object.entries(details?.status.tables ?? {})) {
    if (table.state === "quarantined") add(`${name} is quarantined: ${table.reason}`, table.hint);
    else if (table.reason) add(`${name}: ${table.reason}.`, table.hint);
  }
  for (const lake of details?.status.lakes ?? []) {
    for (const [name, reason] of Object.entries(lake.failing)) {
      add(`${name} does not merge into ${lake.lake}: ${reason}`, "deltatide merge prints what to do");
    }
    if (lake.failing_unnamed) {
      add(`Not merged into ${lake.lake}: ${many(lake.failing_unnamed, "more table")}.`, "deltatide merge prints them all");
    }
  }
  for (const lake of details?.status.verified ?? []) {
    for (const [name, keys] of Object.entries(lake.differences)) {
      add(`${name} differed from the source in ${many(keys, "key")} when it was last verified, in ${lake.lake}.`, `deltatide verify ${name} --repair`);
    }
  }
  for (const dump of details?.dumps ?? []) {
    const quarantined = details.status.tables[dump.table]?.state === "quarantined"; // which says more
    if (dump.state === "failed" && !quarantined && dump.finished_at && secondsSince(dump.finished_at) < RECENT) {
      add(`Dump ${dump.id} of ${dump.table} failed ${ago(dump.finished_at)}: ${dump.why}`, "request it again");
    }
  }
  for (const request of details?.dumps ?? []) {
    if (request.state === "rejected" && secondsSince(request.finished_at) < RECENT) {
      add(`Request ${request.id} was rejected ${ago(request.finished_at)}: ${request.why}`, "correct it, and send it again");
    }
  }
  for (const gap of details?.gaps ?? []) {
    if (secondsSince(gap.found_at) < RECENT) {
      add(`Log was lost, found ${ago(gap.found_at)}: ${gap.reason}`,
        `all tables are dumped again, and cuts are exact once that is done; find out who took the log before epoch ${gap.epoch}`);
    }
  }
  return found;
}

function answer(id, text, level, more) {
  set(id, text);
  byId(id).className = `answer ${level}`;
  set(`${id}-text`, more);
}

function showRunning(agent, details, missing) {
  const who = details ? details.status.agent : missing;
  if (agent.state === "stuck") return answer("state", "Stuck", "bad", who);
  if (agent.state === "standby") return answer("state", "Standing by", "good", details ? `active: ${who}` : who);
  if (agent.state === "starting") return answer("state", "Starting", "warn", who);
  if (agent.store_failing_seconds > BRIEF) return answer("state", "Running, can't land", "bad", who);
  if (agent.log_lost_seconds > BRIEF) return answer("state", "Running, no log", "bad", who);
  return answer("state", "Running", "good", who);
}

function trend(lag, history) {
  const course = courseOf(history);
  if (lag == null || lag < LATE || !course) return "";
  return `${duration(Math.abs(course.change))} ${course.change > 0 ? "more" : "less"} than ${course.minutes} minutes ago`;
}

function firstDump(tables) {
  const all = Object.values(tables);
  const dumped = all.filter((table) => table.dumped).length;
  return dumped < all.length ? `${count(dumped)} of ${many(all.length, "table")} dumped` : "";
}

function showLag(agent, details) {
  if (!details) return answer("lag", "Not known yet", "warn", "");
  const figures = agent.state === "standby" ? details.status.figures : { ...details.status.figures, ...agent.figures };
  const lag = figures.lag_seconds;
  const more = [
    figures.lag_bytes == null ? "" : `${bytes(figures.lag_bytes)} of log not landed`,
    trend(lag, details.history), firstDump(details.status.tables),
  ];
  const level = lag == null || lag >= VERY_LATE ? "bad" : lag >= LATE ? "warn" : "good";
  return answer("lag", lag == null ? "Unknown" : duration(lag), lag == null ? "warn" : level, more.filter(Boolean).join("; "));
}

function createProblem() {
  const item = element("li");
  item.append(element("strong"), element("p"));
  return item;
}

function updateProblem(item, problem) {
  put(item.children[0], problem.text);
  put(item.children[1], problem.hint ? `What to do: ${problem.hint}` : "");
}

function showNeeds(problems) {
  const n = problems.length;
  answer("need", n ? many(n, "thing") : "Nothing", n ? "bad" : "good", n ? "listed below" : "");
  byId("attention").hidden = !n;
  const shown = problems.slice(0, MOST_PROBLEMS).map((problem, at) => ({ ...problem, at }));
  if (n > shown.length) shown.push({ text: `${count(n - shown.length)} more`, hint: "deltatide status lists all", at: -1 });
  keyed("problems", shown, (problem) => problem.at, createProblem, updateProblem);
}

// `details`: null if there are none yet, for the reason `missing`.
export function showSummary(agent, details, missing) {
  const problems = problemsOf(agent, details);
  byId("answers").hidden = false;
  set("source", details?.status.source ?? agent.source);
  set("version", `version ${agent.version}`);
  showRunning(agent, details, missing);
  showLag(agent, details);
  showNeeds(problems);
  document.title = `${agent.source}: ${byId("state").textContent.toLowerCase()}${problems.length ? `, needs you (${problems.length})` : ""}`;
}

export function showUnreachable(since) {
  answer("state", "Not reachable", "bad", `no answer since ${utc(since)}; what is shown is older`);
  document.title = "not reachable";
}
