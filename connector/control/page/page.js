// The status page: asks the agent every two seconds, and sends what its buttons ask for.
//
// The agent's own state is asked apart from the rest: it is in memory, the rest may wait for the store.

import { showDetails, showTables } from "./details.js";
import { byId, set } from "./draw.js";
import { noteClock, now } from "./format.js";
import { showSummary, showUnreachable } from "./summary.js";

const POLL_MS = 2000;
const HISTORY_MS = 9000; // it has a new point every ten seconds
const PATIENCE_MS = 10000;
const MESSAGE_MS = 15000;
const TOKEN = "deltatide-token";

let agent = null; // what /api/agent answered last
let details = null; // what /api/overview answered last, with the history
let history = { at: 0, points: [] };
let missing = ""; // why there are no details
let answered = now(); // when the agent last did

class ApiError extends Error {
  constructor(status, body) {
    super(body.error + (body.hint ? ` (${body.hint})` : ""));
    this.status = status;
    this.reason = body.error;
  }
}

class UnreachableError extends Error {}

async function ask(path, body, signal) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const options = body === undefined ? { headers, signal } : {
    method: "POST", headers: { ...headers, "Content-Type": "application/json" }, body: JSON.stringify(body),
  };
  let answer, found;
  try {
    answer = await fetch(`api/${path}`, options);
    found = await answer.json();
  } catch {
    throw new UnreachableError("the agent does not answer");
  }
  noteClock(answer.headers.get("Date"));
  if (!answer.ok) throw new ApiError(answer.status, found);
  return found;
}

// ---- messages

let silence = 0;

function say(text) {
  set("message", text);
  clearTimeout(silence);
  silence = setTimeout(() => set("message", ""), MESSAGE_MS);
}

let otherToken = false; // whether the token at hand reads, but a button asked for more

function askForToken() {
  byId("token-form").hidden = false;
  if (sessionStorage.getItem(TOKEN)) say("The agent does not accept this token.");
  sessionStorage.removeItem(TOKEN);
}

// ---- what is asked for

async function request(verb, body, text, effect = "It takes effect with the next chunk.") {
  try {
    await ask(verb, body);
    say(`Requested: ${text}. ${effect}`);
    await refreshDetails();
  } catch (error) {
    say(`Not requested: ${error.message}`);
    otherToken = error.status === 403 && sessionStorage.getItem(TOKEN) !== null;
    if (otherToken) byId("token-form").hidden = false;
  }
}

function control(verb, dump) {
  if (verb === "settings") return openSettings(dump);
  if (verb === "cancel" && !confirm(`Cancel dump ${dump}? What it has landed stays.`)) return undefined;
  return request(verb, { dump }, `${verb} dump ${dump}`);
}

function openSettings(dump) {
  const dialog = byId("settings-dialog");
  const form = byId("settings-form");
  const names = ["chunk_rows", "workers", "delay_seconds", "rows_per_second"];
  form.reset();
  const own = details.dumps.find((each) => each.id === dump)?.settings;
  for (const name of names) form.elements[name].placeholder = own?.[name] ?? details.settings[name];
  set("settings-title", dump ? `Settings of dump ${dump}` : "Settings of all dumps");
  dialog.returnValue = "";
  dialog.onclose = () => {
    if (dialog.returnValue !== "set") return;
    const values = new FormData(form);
    const given = names.filter((name) => values.get(name) !== "");
    const settings = Object.fromEntries(given.map((name) => [name, Number(values.get(name))]));
    const body = { settings, defaults: values.has("defaults"), ...(dump ? { dump } : {}) };
    request("set", body, `settings of ${dump ? `dump ${dump}` : "all dumps"}`);
  };
  dialog.showModal();
}

function dumpAll() {
  if (confirm("Dump all tables again? The log keeps flowing meanwhile.")) {
    request("dump", { all: true }, "dump all tables", "It shows below within seconds.");
  }
}

// ---- the course

async function refreshAgent() {
  agent = await ask("agent", undefined, AbortSignal.timeout(PATIENCE_MS));
  answered = now();
  byId("token-form").hidden = !otherToken;
  showSummary(agent, details, missing);
}

async function refreshDetails() {
  const overview = await ask("overview");
  if (Date.now() - history.at > HISTORY_MS) history = { at: Date.now(), points: await ask("history") };
  details = { ...overview, history: history.points };
  if (agent) showSummary(agent, details, missing);
  showDetails(details, control);
}

async function pollAgent() {
  try {
    await refreshAgent();
  } catch (error) {
    if (error.status === 401) askForToken();
    else if (error instanceof UnreachableError) showUnreachable(answered);
    else throw error;
  }
}

async function pollDetails() {
  try {
    await refreshDetails();
  } catch (error) {
    if (error instanceof UnreachableError || error.status === 401) return; // pollAgent says so
    if (!(error instanceof ApiError)) throw error;
    missing = error.status === 409 ? "nothing has landed yet" : error.reason;
    if (details) say(`Not everything shown is current: ${error.message}`);
    else if (agent) showSummary(agent, details, missing);
  }
}

// Call `poll` every two seconds while the page can be seen; returns what calls it now.
function repeat(poll) {
  let timer = 0;
  let underWay = false;
  const again = async () => {
    if (underWay) return;
    underWay = true;
    clearTimeout(timer);
    try {
      if (!document.hidden) await poll();
    } catch (error) {
      console.error(error); // a bug of the page
    }
    underWay = false;
    timer = setTimeout(again, POLL_MS);
  };
  document.addEventListener("visibilitychange", again);
  again();
  return again;
}

const askAgent = repeat(pollAgent);
const askDetails = repeat(pollDetails);

byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId("token").value);
  byId("token").value = "";
  otherToken = false;
  set("message", "");
  askAgent();
  askDetails();
});
byId("pause-all").addEventListener("click", () => request("pause", { all: true }, "pause all dumps, also those queued later"));
byId("resume-all").addEventListener("click", () => request("resume", { all: true }, "resume all dumps"));
byId("set-all").addEventListener("click", () => openSettings(null));
byId("dump-all").addEventListener("click", dumpAll);
byId("filter").addEventListener("input", () => showTables(details));
