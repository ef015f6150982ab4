"use strict";
// The console. It only shows the answers of /v1/ and /api/v1/. Text from outside becomes text nodes, never markup.

const POLL_MS = 2000;
const PATIENCE_MS = 40000; // A node gives up what it asks of others before.
const SAMPLES_MAX = 60;
const SAMPLES_MS = 120000; // A rate over a longer time is not that of now.
const TAIL_MAX = 500;
const PAGE = 200;
const PAGE_MS = 10000; // How long a page of records is looked for,
const PAGE_BYTES = 4 * 1024 * 1024; // and how much of them it holds.
const SHOWN_BYTES = 65536; // of a key, a value and all headers of a record, until more is asked for
const LAID_OUT_MAX = 1024 * 1024; // Indenting more would hold up the page.
const LEVELS_MAX = 40; // of JSON, that are indented
const TOKEN = "jetstream-token"; // of this tab only, and gone with it

const $ = (id) => document.getElementById(id);

/** An element: attributes (on… are listeners), then children: nodes, texts, lists of them, or null. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined && child !== false) element.append(child);
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Replace the content. A field or button that has the focus keeps it. */
function put(where, ...content) {
  const focused = document.activeElement;
  const id = where.contains(focused) ? focused.id : "";
  where.replaceChildren(...content.flat());
  const again = id && $(id);
  if (!again || again === document.activeElement) return;
  again.focus({ preventScroll: true });
  if (again.tagName === "INPUT" && again !== focused) {
    again.value = focused.value;
    again.setSelectionRange(focused.selectionStart, focused.selectionEnd);
  }
}

// Numbers and times as people read them.

const count = (value) => Number(value).toLocaleString("en-US");

function size(value) {
  let number = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (number < 1024 || unit === "TiB") return `${unit === "B" ? number : number.toFixed(1)} ${unit}`;
    number /= 1024;
  }
}

function rate(value) {
  if (value === null) return "–";
  return value >= 100 ? count(Math.round(value)) : value.toFixed(value && value < 10 ? 1 : 0);
}

const moment = (time) => time.replace("T", " ").replace("Z", ""); // In UTC.

let ahead = 0; // by how many milliseconds the node's clock is ahead of this one
const ago = (time) => `${span(Math.max(0, Math.round((Date.now() + ahead - Date.parse(time)) / 1000)))} ago`;

/** Milliseconds; NaN for what is no time. Date.parse alone takes a 5 for a day in 2001. */
function timeOf(text) {
  const parts = /^(\d{4}-\d\d-\d\d)(?:[tT ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?\s*(?:([zZ])|([+-]\d\d):?(\d\d))?$/.exec(text.trim());
  return parts ? Date.parse(`${parts[1]}T${parts[2] || "00:00"}${parts[4] ? `${parts[4]}:${parts[5]}` : "Z"}`) : NaN;
}

function span(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= length) return `${+(seconds / length).toFixed(1)} ${unit}`;
  return `${seconds} s`;
}

const fullName = (stream) => (stream.subject ? `${stream.name}@${stream.subject}` : stream.name);
const path = (name) => `streams/${encodeURIComponent(name)}`;
const rows = (name) => `v1/${path(name)}/records`;
const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replaceAll("'", "'\\''")}'`);

// Requests.

class Refused extends Error {}

const authorization = (token = sessionStorage.getItem(TOKEN)) => token ? { Authorization: `Bearer ${token}` } : {};

function refusal(answer, found) {
  const error = new Refused(found.error ? found.error.message : `${answer.status} ${answer.statusText}`);
  error.status = answer.status;
  error.code = found.error && found.error.code;
  return error;
}

async function request(where, method, body, token) {
  const headers = authorization(token), ending = new AbortController();
  const options = { headers, method, signal: ending.signal };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  const patience = setTimeout(() => ending.abort(), PATIENCE_MS);
  let answer, found;
  try {
    answer = await fetch(where, options);
    found = await answer.json().catch((error) => { if (ending.signal.aborted) throw error; return {}; });
  } catch (error) { // A node that is frozen, or cut off, leaves a request without an answer for ever.
    throw ending.signal.aborted ? new TypeError("no answer; what was asked for may be done or not") : error;
  } finally {
    clearTimeout(patience);
  }
  const date = Date.parse(answer.headers.get("Date"));
  if (!Number.isNaN(date)) ahead = date - Date.now();
  if (answer.ok) return found;
  throw refusal(answer, found);
}

const api = (what, body, token) => request(`api/v1/${what}`, body === undefined ? "GET" : "POST", body, token);
const v1 = (what, method = "GET", body = undefined) => request(`v1/${what}`, method, body);

/** The events of a stream's records, as they come. take(id, record): id: how far it has come; record: null if that is all. Until it returns false. */
async function events(name, query, signal, take) {
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  const silent = new AbortController(), headers = { ...authorization(), Accept: "text/event-stream" };
  let patience = 0;
  const wait = async (what) => { // A node that follows is heard from at least every 15 s.
    clearTimeout(patience);
    patience = setTimeout(() => silent.abort(new TypeError("no answer")), PATIENCE_MS);
    try { return await what; } finally { clearTimeout(patience); }
  };
  const answer = await wait(fetch(`${rows(name)}?${asked}`, { headers, signal: signal ? AbortSignal.any([signal, silent.signal]) : silent.signal }));
  if (!answer.ok) throw refusal(answer, await answer.json().catch(() => ({})));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let parts = [], last = "";
  for (;;) {
    const { done, value } = await wait(reader.read());
    if (done) return;
    parts.push(value);
    if (!(last + value).includes("\n\n")) { last = value.slice(-1); continue; } // A long record comes in many pieces.
    const blocks = parts.join("").split("\n\n");
    parts = [blocks.pop()];
    last = parts[0].slice(-1);
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      const data = fields.data && JSON.parse(fields.data);
      if (fields.event === "error") throw refusal(answer, data);
      if (fields.id !== undefined && take(Number(fields.id), data || null) === false) return void await reader.cancel();
    }
  }
}

// The beginning of the commands to copy.
let server = "";
const command = (...words) => ["jetstream", ...(server ? ["--server", server] : []), ...words].map(quoted).join(" ");

function copyable(text) {
  const code = h("code", { tabindex: "0" }, text);
  const copy = async (event) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // Only pages of https and of this machine may use the clipboard: select it, at least.
      getSelection().selectAllChildren(code);
    }
    event.target.textContent = "Copied";
    setTimeout(() => { event.target.textContent = "Copy"; }, 1500);
  };
  const button = h("button", { class: "small", type: "button", "aria-label": `Copy: ${text}`, onclick: copy }, "Copy");
  return h("span", { class: "command" }, code, button);
}

/** columns: [heading, cell(row), is a number]. */
function table(label, columns, rows, key) {
  if (!rows.length) return h("div", { class: "empty" }, "Nothing here.");
  const head = columns.map(([title, , number]) => h("th", { class: number ? "n" : "", scope: "col" }, title));
  const body = rows.map((row) => h("tr", { "data-key": key(row) }, columns.map(([title, cell, number]) =>
    h("td", { class: number ? "n" : title === "Name" ? "name" : "", "data-label": title }, cell(row)))));
  return h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, body));
}

function section(title, text, content, ...more) {
  return h("section", {}, h("div", { class: "head" }, h("h2", {}, title), ...more, h("span", { class: "grow" }),
    text ? copyable(text) : null), content);
}

const card = (title, value, kind = "") => h("div", { class: "card" }, h("span", { class: "dim" }, title), h("b", { class: kind }, value));

// Rates between two requests.

const seen = new Map();

function sampled(name, total, now) {
  const known = seen.get(name) || { samples: [] };
  if (total === null) return known.samples;
  const records = Number(total);
  if (now - known.at < POLL_MS / 2) return known.samples; // Too short to tell a rate.
  if (known.at !== undefined && now > known.at)
    known.samples = [...known.samples, Math.max(0, records - known.records) / ((now - known.at) / 1000)].slice(-SAMPLES_MAX);
  Object.assign(known, { at: now, records });
  seen.set(name, known);
  return known.samples;
}

/** Forget the streams that were not looked at for so long: a rate since then would be wrong, and of deleted streams they would stay. */
function forgetUnseen(now) {
  for (const [name, known] of seen) if (now - known.at > SAMPLES_MS) seen.delete(name);
}

/** The rate now; null: unknown. */
const latest = (found, samples) => end(found) === null || !samples.length ? null : samples.at(-1);

function chart(samples, width, height, kind = "") {
  const top = Math.max(...samples, 1e-9);
  const points = samples.map((value, at) =>
    `${((SAMPLES_MAX - samples.length + at) / (SAMPLES_MAX - 1) * width).toFixed(1)},${(height - value / top * (height - 2) - 1).toFixed(1)}`);
  const last = samples.length ? samples.at(-1) : null;
  const label = `records a second: ${rate(last)} now, ${rate(samples.length ? Math.max(...samples) : null)} at most`;
  const picture = svg("svg", { class: `chart ${kind}`, preserveAspectRatio: "none", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  if (points.length > 1) {
    const begin = points[0].split(",")[0];
    picture.append(svg("polygon", { class: "area", points: `${begin},${height} ${points.join(" ")} ${width},${height}` }),
      svg("polyline", { class: "line", points: points.join(" ") }));
  }
  return picture;
}

// Changes.

const mayChange = () => $("changes").checked;

function ask(title, fields, text, act) {
  const dialog = $("dialog");
  const problem = h("div", { class: "error", role: "alert", hidden: true });
  const inputs = fields.map(([name, label, input]) => { input.name = name; return h("label", {}, label, input); });
  const shown = h("code", {}, typeof text === "function" ? text({}) : text || "");
  const ok = h("button", { class: "main", type: "submit" }, "OK");
  const values = () => Object.fromEntries(fields.map(([name, , input]) => [name, input.type === "checkbox" ? input.checked : input.value.trim()]));
  const submit = async (event) => {
    event.preventDefault();
    if (ok.disabled) return; // It is asked for already.
    ok.disabled = true;
    try {
      await act(values());
      if (dialog.contains(form)) dialog.close(); // Another question may be open by now.
      refresh();
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
    ok.disabled = false;
  };
  const form = h("form", { onsubmit: submit, oninput: () => { if (typeof text === "function") shown.textContent = text(values()); } },
    h("h2", {}, title), inputs, problem, text ? h("span", { class: "command" }, shown) : null,
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      ok));
  dialog.replaceChildren(form);
  dialog.showModal();
}

function action(id, label, act) {
  return mayChange() ? h("button", { id, class: "small", type: "button", onclick: act }, label) : null;
}

function login() {
  const input = h("input", { type: "password", autocomplete: "off", "aria-label": "Token" });
  ask("Log in", [["token", "Token (empty: log out)", input]], "", async ({ token }) => {
    if (!token) sessionStorage.removeItem(TOKEN);
    else {
      if (!/^[\x21-\x7e]+$/.test(token)) throw new Refused("this is no token: it has characters that no token has");
      await api("cluster", undefined, token); // A token that is refused is not kept.
      sessionStorage.setItem(TOKEN, token);
    }
    showLogin();
    watchHealth();
  });
}

const showLogin = () => { $("login").textContent = sessionStorage.getItem(TOKEN) ? "Logged in" : "Log in"; };

// Pages. Each has look(), which requests, and draw(found), which shows. `stop` ends running requests.

const clusterPage = () => ({
  title: "Cluster",
  look: () => api("cluster"),
  draw(found) {
    const nodes = found.nodes || [];
    const room = (use) => use ? [h("meter", { min: 0, max: 1, low: 0.5, high: 0.999, optimum: 0, value: full(use), "aria-label": "Free space until the reserve" }), ` ${size(use.disk_free_bytes)} free`] : "–";
    const full = (use) => Math.min(1, Number(use.disk_reserve_bytes) / Math.max(1, Number(use.disk_free_bytes)));
    const columns = [
      ["Node", (n) => [String(n.address.node_id), n.address.node_id === found.controller ? h("span", { class: "dim" }, " controller") : null]],
      ["State", (n) => state(n)],
      ["Voter", (n) => n.voter === undefined ? "–" : n.voter ? "yes" : "no"],
      ["Rack", (n) => n.rack || "–"],
      ["Session", (n) => h("span", { class: "mono" }, String(n.incarnation))],
      ["Leads", (n) => n.use ? `${count(n.use.streams_led)} of ${count(n.use.streams)}` : "–", true],
      ["Logs", (n) => n.use ? size(n.use.log_bytes) : "–", true],
      ["Disk", (n) => room(n.use)],
      ["Address", (n) => h("span", { class: "mono" }, n.address.grpc)],
    ];
    if (mayChange()) columns.push(["", (n) => action(`drain-${n.address.node_id}`, n.draining ? "Take work again" : "Drain", () => drain(n))]);
    return [
      h("h1", {}, "Cluster"),
      h("div", { class: "cards" },
        card("Nodes", `${nodes.filter(isWell).length} of ${nodes.length}`, nodes.every(isWell) ? "good" : "bad"),
        card("Controller", found.controller < 0 ? "none" : `node ${found.controller}`, found.controller < 0 ? "bad" : ""),
        card("Version", found.server_version)),
      section("Nodes", command("cluster", "status"), table("Nodes", columns, nodes, (n) => n.address.node_id)),
      section("NATS", command("cluster", "status"), h("div", { class: "body mono" }, (found.nats || []).join(", ") || "–")),
      h("p", { class: "dim mono" }, `cluster ${found.cluster_id}`),
    ];
  },
});

const isWell = (node) => !node.fenced && !(node.not_ready || []).length;

function state(node) {
  if (node.fenced) return h("span", { class: "bad" }, "fenced: not heard");
  const reasons = node.not_ready || [];
  if (reasons.length) return h("span", { class: "bad" }, `not ready: ${reasons.join(", ")}`);
  return node.draining ? h("span", { class: "warn" }, "draining") : h("span", { class: "good" }, "serving");
}

function drain(node) {
  const id = node.address.node_id;
  const words = ["node", "drain", String(id), ...(node.draining ? ["--undo"] : [])];
  ask(node.draining ? `Let node ${id} lead again?` : `Move all leaderships away from node ${id}?`, [], command(...words),
    () => api(`nodes/${id}/drain`, { draining: !node.draining }));
}

let typing = 0;

const searchField = (what, query, go) => h("input", { id: "search", type: "search", placeholder: what, "aria-label": `Search: ${what}`,
  value: query.get("match") || "", oninput: (event) => {
    clearTimeout(typing);
    const here = location.hash;
    typing = setTimeout(() => { if (location.hash === here) go({ match: event.target.value, start: 0 }); }, 300);
  } });

const streamsPage = (query) => ({
  title: "Streams",
  look: () => v1(`streams?${new URLSearchParams({ match: query.get("match") || "", start: query.get("start") || 0, limit: PAGE })}`),
  draw(found) {
    const now = performance.now();
    forgetUnseen(now);
    const start = Number(query.get("start") || 0);
    const go = (more) => { location.hash = `#/streams?${new URLSearchParams({ ...Object.fromEntries(query), ...more })}`; };
    const search = searchField("Name or subject", query, go);
    const columns = [
      ["Name", (s) => [h("a", { id: `to-${s.id}`, href: `#/${path(fullName(s))}` }, s.name), marks(s)]],
      ["Subject", (s) => h("span", { class: "mono" }, s.subject || "–")],
      ["Leader", (s) => s.leader < 0 ? h("span", { class: "bad" }, "none") : String(s.leader), true],
      ["In sync", (s) => sync(s), true],
      ["Records", (s) => records(s), true],
      ["Size", (s) => isReported(s) ? size(s.size_bytes) : "unknown", true],
      ["Lag", (s) => isReported(s) ? lag(s) : "unknown", true],
      ["Records/s", (s) => rate(latest(s, s.samples)), true],
      ["", (s) => chart(s.samples, 120, 24)],
    ];
    for (const each of found.streams) each.samples = sampled(each.id, end(each), now);
    const pages = found.total > PAGE ? h("span", {},
      h("button", { id: "before", class: "small", type: "button", disabled: start === 0, onclick: () => go({ start: Math.max(0, start - PAGE) }) }, "Before"),
      ` ${start + 1}–${Math.min(start + PAGE, found.total)} of ${count(found.total)} `,
      h("button", { id: "after", class: "small", type: "button", disabled: start + PAGE >= found.total, onclick: () => go({ start: start + PAGE }) }, "After")) : null;
    return [h("h1", {}, "Streams"),
      section(`${count(found.total)} ${found.total === 1 ? "stream" : "streams"}`, command("stream", "list"),
        table("Streams", columns, found.streams, (s) => s.id), search, pages, action("create", "Create a stream", create))];
  },
});

/** While a stream is reassigned, a replica that becomes an observer is in both lists, and counts. */
const observersOf = (stream) => (stream.observers || []).filter((node) => !stream.replicas.includes(node));

const sync = (stream) => {
  const all = stream.replicas.length, now = stream.isr.length;
  const observers = observersOf(stream).length;
  return h("span", { class: now < (stream.min_insync_replicas || 1) ? "bad" : now < all ? "warn" : "" }, `${now} of ${all}${observers ? ` + ${observers}` : ""}`);
};

/** Why it takes no messages, if it takes none. */
const marks = (stream) => [[stream.readonly, "read-only"], [stream.paused, "paused"], [stream.restoring, "restoring"]]
  .map(([holds, mark]) => holds && h("span", { class: "warn" }, ` ${mark}`));

/** Whether its leader has reported it. */
const isReported = (found) => found.log_end_offset !== null;

/** Committed records are below it; null: its leader does not know that yet, or has not reported it. */
const end = (found) => found.high_watermark;

/** Compaction leaves offsets without a record: they are not counted. */
const records = (found) => end(found) === null ? "unknown" : `${found.compact ? "≤ " : ""}${count(end(found) - found.log_start_offset)}`;
const offsets = (found) => !isReported(found) ? "unknown" : end(found) === null ? `${count(found.log_start_offset)} – unknown` : end(found) === found.log_start_offset ? `none below ${count(end(found))}` : `${count(found.log_start_offset)} – ${count(end(found) - 1)}`;

function lag(described) {
  const lags = described.progress.filter((p) => described.replicas.includes(p.node)).map((p) => p.lag);
  if (lags.includes(null)) return "unknown";
  return lags.length ? count(Math.max(0, ...lags)) : "–";
}

const field = (attributes = {}) => h("input", attributes);

// The settings of a stream, by SETTINGS, the server's table (settings.js). A form has them as text, flags as true or false.

const spelled = (setting, choice) => `${setting.name}_${choice}`.toUpperCase().replaceAll("-", "_");

function settingIn(stream, setting) {
  const value = setting.name === "observers" ? stream.observers.length : stream[setting.name];
  return setting.kind === "flag" ? value : String(value);
}

function settingOut(setting, value) {
  if (setting.kind === "choice") return spelled(setting, value);
  return setting.kind === "duration" ? String(Math.round(Number(value) * 1e6)) : value;
}

function settingOption(setting, value) {
  const name = setting.name.replaceAll("_", "-");
  if (setting.kind === "flag") return [value ? `--${name}` : `--no-${name}`];
  return [`--${name}`, setting.kind === "duration" ? `${value}s` : value];
}

function settingInput(setting, value) {
  if (setting.kind === "flag") return field({ type: "checkbox", checked: value });
  if (setting.kind !== "choice") return field({ inputmode: "decimal", pattern: setting.kind === "duration" ? "[0-9]*[.]?[0-9]*" : "[0-9]*", value });
  return h("select", {}, (value ? [] : [""]).concat(setting.choices).map((choice) => h("option", { value: choice, selected: choice === value }, choice || "by default")));
}

/** The part of a form for these settings. before: as they are, by name; "": not set. */
const settingForm = (settings, before) => {
  const changed = (v) => settings.filter(({ name }) => v[name] !== undefined && v[name] !== "" && v[name] !== before[name]);
  return {
    inputs: settings.map((each) => [each.name, each.label, settingInput(each, before[each.name])]),
    options: (v) => changed(v).flatMap((each) => settingOption(each, v[each.name])),
    config: (v) => Object.fromEntries(changed(v).map((each) => [each.field, settingOut(each, v[each.name])])),
  };
};

function create() {
  const form = settingForm(SETTINGS, Object.fromEntries(SETTINGS.map(({ name, kind }) => [name, kind === "flag" ? false : ""])));
  const words = (v) => command("stream", "create", v.name || "NAME", "--subject", v.subject || "SUBJECT", ...form.options(v));
  ask("Create a stream", [
    ["name", "Name", field({ required: true })], ["subject", "NATS subject; * and > as in NATS", field({ required: true })],
    ...form.inputs,
  ], words, (v) => api("streams", { name: v.name, subject: v.subject, config: form.config(v) }));
}

function alter(stream) {
  const name = fullName(stream), alterable = SETTINGS.filter((each) => each.is_alterable);
  const form = settingForm(alterable, Object.fromEntries(alterable.map((each) => [each.name, settingIn(stream, each)])));
  ask(`Alter ${name}`, form.inputs, (v) => command("stream", "alter", name, ...form.options(v)),
    (v) => api(`${path(name)}/alter`, { config: form.config(v), stream_epoch: stream.stream_epoch }));
}

function reassign(stream) {
  const name = fullName(stream);
  const before = { replicas: [...(stream.target_replicas && stream.target_replicas.length ? stream.target_replicas : stream.replicas)], observers: [...(stream.observers || [])] };
  const nodes = (text) => (text || "").split(",").map((word) => word.trim()).filter(Boolean).map(Number);
  const observe = (v) => v.observers !== undefined && String(nodes(v.observers)) !== String(before.observers);
  const words = (v) => command("stream", "reassign", name, "--replicas", String(v.replicas === undefined ? before.replicas : nodes(v.replicas)),
    ...(observe(v) ? ["--observers", String(nodes(v.observers)) || "none"] : []));
  const list = (value) => field({ inputmode: "numeric", pattern: "\\s*([0-9]+\\s*(,\\s*[0-9]+\\s*)*)?", value: value.join(",") });
  ask(`Move ${name}`, [
    ["replicas", "Nodes of its replicas, as 0,1,2; it leaves others once these have all of it", list(before.replicas)],
    ["observers", "Nodes of its observers (empty: none); one that is named as a replica is promoted", list(before.observers)],
  ], words, (v) => api(`${path(name)}/reassign`, { replicas: nodes(v.replicas), ...(observe(v) ? { observers: { nodes: nodes(v.observers) } } : {}) }));
}

const streamPage = (name) => {
  const browser = messageBrowser(name);
  const overview = h("div");
  return {
    title: name,
    async look() {
      const [stream, cursors] = await Promise.all([v1(path(name)), cursorsOf(name).catch((error) => ({ error }))]);
      const shared = await sharedOf(`${stream.name}@${stream.subject}`).catch((error) => ({ error }));
      return { stream, cursors, shared };
    },
    draw(found) {
      browser.begins(found.stream.log_start_offset);
      put(overview, [...streamOverview(name, found.stream), streamCursors(name, found.cursors), streamConsumers(name, found.shared)].filter(Boolean));
      return overview.isConnected ? null : [overview, browser.element];
    },
    stop: browser.stop,
  };
};

function streamOverview(name, found) {
  const stream = found;
  const now = performance.now();
  forgetUnseen(now);
  const samples = sampled(stream.id, end(found), now);
  const progress = new Map(found.progress.map((p) => [p.node, p.offset]));
  const online = found.state === "online";
  const replicas = [...stream.replicas, ...observersOf(stream)].map((node) => ({ node }));
  const role = ({ node }) => node === stream.leader ? "leader" : !stream.replicas.includes(node) ? "observer" : stream.isr.includes(node) ? h("span", { class: "good" }, "in sync") : h("span", { class: "warn" }, "out of sync");
  const offset = ({ node }) => node === stream.leader && isReported(found) ? count(found.log_end_offset) : progress.has(node) && progress.get(node) >= 0 ? count(progress.get(node)) : "unknown";
  const behind = ({ node }) => node === stream.leader ? "–" : progress.has(node) && progress.get(node) >= 0 ? count(found.log_end_offset - progress.get(node)) : "unknown";
  const columns = [["Node", (r) => String(r.node)], ["Role", role], ["Position", offset, true], ["Lag", behind, true]];
  if (mayChange()) columns.push(["", ({ node }) => node !== stream.leader && stream.isr.includes(node) ? action(`lead-${node}`, "Make it the leader", () => transfer(name, node)) : null]);
  const limits = [stream.max_age > 0 && span(stream.max_age), stream.max_bytes > 0 && size(stream.max_bytes), stream.max_messages > 0 && `${count(stream.max_messages)} records`, stream.compact && "the last record of each key"].filter(Boolean);
  const facts = [
    ["Subject", stream.subject || "none: internal"], ["Keeps", limits.join(", ") || "everything"],
    ["Flush", stream.flush], ["Acks", stream.acks],
    ["Encryption", stream.encryption === "node" ? "as the nodes are configured" : stream.encryption],
    ...((stream.target_replicas || []).length ? [["Moves to nodes", stream.target_replicas.join(", ")]] : []),
    ["Needs in sync", String(stream.min_insync_replicas)], ["Group", stream.group || "–"], ["Leader epoch", String(stream.leader_epoch)],
    ["Acks, refusals since start", isReported(found) ? `${count(found.acks_sent)}, ${count(found.nacks_sent)}` : "unknown"],
    ["Suspected gaps", isReported(found) ? count(found.suspected_gaps) : "unknown"], ["Created (UTC)", moment(stream.created_at)],
  ];
  return [
    h("h1", {}, stream.name, marks(stream)),
    online ? null : h("div", { class: "error", role: "alert" }, found.state),
    h("div", { class: "cards" },
      card("Records", records(found)), card("Offsets", offsets(found)),
      card("Size", isReported(found) ? size(found.size_bytes) : "unknown"), card("Not committed", end(found) === null ? "unknown" : count(found.log_end_offset - end(found))),
      card("Last record", found.last_append ? ago(found.last_append) : isReported(found) ? "–" : "unknown")),
    section("Records a second", "", h("div", { class: "body" }, h("b", {}, rate(latest(found, samples))), chart(samples, 600, 60, "wide"))),
    section("Replicas", command("stream", "describe", name), table("Replicas", columns, replicas, (r) => r.node), action("reassign", "Move", () => reassign(stream))),
    section("Settings", command("stream", "describe", name), h("div", { class: "body" }, h("dl", {}, facts.map(([title, value]) => [h("dt", {}, title), h("dd", {}, value)]))), action("alter", "Alter", () => alter(stream))),
  ].filter(Boolean);
}

function transfer(name, node) {
  ask(`Make node ${node} the leader of ${name}?`, [], command("stream", "transfer-leader", name, String(node)),
    () => api(`${path(name)}/transfer-leader`, { node_id: node }));
}

// Messages.

function messageBrowser(name) {
  const list = h("div", { id: "messages", "aria-live": "off" }, h("div", { class: "empty" }, "Loading…"));
  const from = h("select", { id: "from" }, [["last", "The last records"], ["offset", "From an offset"], ["time", "From a time"], ["earliest", "From the first on"]].map(([value, text]) => h("option", { value }, text)));
  const at = h("input", { id: "at", placeholder: "0", "aria-label": "Offset or time", hidden: true });
  const subject = h("input", { id: "subject", placeholder: "orders.eu.>" });
  const key = h("input", { id: "key" });
  const limit = h("input", { id: "limit", type: "number", min: 1, max: 500, value: 50 });
  const note = h("span", { class: "dim", role: "status" });
  const tail = h("button", { id: "tail", type: "button", "aria-pressed": "false" }, "Live tail");
  const shown = h("span", {});
  let page = null, running = null, turn = 0, start = 0;

  const filters = () => ({ filter: subject.value, ...(key.value && { key: key.value }), bytes_max: SHOWN_BYTES });
  const fetchCommand = (...place) => command("fetch", name, ...place, ...(subject.value ? ["--filter", subject.value] : []), ...(key.value ? ["--key", key.value] : []));

  /** Records until there are enough, or PAGE_BYTES of them, or PAGE_MS have passed. Of the last ones the newest are kept. */
  async function fetchPage(query, wanted, keepsLast) {
    const ending = new AbortController(), timer = setTimeout(() => ending.abort(), PAGE_MS);
    const records = [], sizes = [];
    let next = null, bytes = 0, stopped = true;
    try {
      await events(name, { ...filters(), ...query, limit: wanted, follow: false }, ending.signal, (id, record) => {
        next = id + 1;
        if (!record) return true;
        records.push(record);
        sizes.push(JSON.stringify(record).length);
        bytes += sizes.at(-1);
        while (keepsLast && bytes - sizes[0] >= PAGE_BYTES) { bytes -= sizes.shift(); records.shift(); }
        return keepsLast || bytes < PAGE_BYTES;
      });
      stopped = bytes >= PAGE_BYTES && !keepsLast;
    } catch (error) {
      if (!ending.signal.aborted) throw error;
    } finally {
      clearTimeout(timer);
    }
    return { records, next, stopped };
  }

  async function show(more, place, keepsLast = false) {
    endTail();
    const mine = turn += 1;
    try {
      const found = await fetchPage(more, limit.value, keepsLast);
      if (mine !== turn) return; // Something else was asked for meanwhile.
      page = found;
      shown.replaceChildren(copyable(fetchCommand(...place)));
      const lines = page.records.map((record) => messageRow(name, record));
      if (keepsLast) lines.reverse(); // Of the last records the newest is on top.
      list.replaceChildren(...(lines.length ? lines : [h("div", { class: "empty" }, "No such record here.")]));
      const first = page.records.length ? page.records[0].offset : null;
      const until = page.next === null ? "" : `looked up to offset ${page.next}`;
      note.textContent = first === null ? until : `${page.records.length} records, ${first} to ${page.records.at(-1).offset}${page.stopped ? "; Newer goes on" : ""}`;
    } catch (error) {
      if (mine === turn) list.replaceChildren(h("div", { class: "error", role: "alert" }, error.message));
    }
  }

  const most = () => ["--max", limit.value];
  const fromOffset = (offset) => show({ from: offset }, ["--from", String(offset), ...most()]);

  function begin() {
    const value = at.value.trim();
    if (from.value === "offset") return fromOffset(value || 0);
    if (from.value === "earliest") return show({ from: "earliest" }, ["--from", "earliest", ...most()]);
    if (from.value === "time") {
      const time = timeOf(value);
      if (Number.isNaN(time) || time < 0) { note.textContent = "a time is written so: 2026-01-31T12:00:00 (UTC)"; return undefined; }
      const said = new Date(time).toISOString();
      return show({ from: said }, ["--from", said, ...most()]);
    }
    return show({ from: `-${limit.value}` }, ["--from", `last:${limit.value}`], true);
  }

  const older = () => page && fromOffset(Math.max(start, (page.records.length ? page.records[0].offset : page.next || start) - Number(limit.value)));
  const newer = () => page && page.next !== null && fromOffset(page.next);

  async function follow() {
    const controller = running = new AbortController();
    turn += 1;
    tail.setAttribute("aria-pressed", "true");
    shown.replaceChildren(copyable(fetchCommand("--follow", "--from", "latest")));
    let offset = "latest";
    if (list.querySelector(".empty, .error")) list.replaceChildren();
    while (running === controller) {
      try {
        await events(name, { ...filters(), from: offset, follow: true }, controller.signal, (id, record) => {
          offset = id + 1;
          note.textContent = `following, at offset ${offset}`;
          if (!record) return;
          list.prepend(messageRow(name, record));
          while (list.children.length > TAIL_MAX) list.lastChild.remove();
        });
        if (running === controller) throw new Error("the node has ended it"); // It makes room, or stops.
      } catch (error) {
        if (running !== controller) return;
        if (["offset_out_of_range", "stream_not_found"].includes(error.code)) offset = "latest"; // Retention was faster, or the stream is another one.
        note.textContent = `${error.message}; trying again`;
        await new Promise((done) => setTimeout(done, POLL_MS));
      }
    }
  }

  function endTail() {
    if (running) { running.abort(); running = null; note.textContent = ""; }
    tail.setAttribute("aria-pressed", "false");
  }

  tail.addEventListener("click", () => (running ? endTail() : follow()));
  from.addEventListener("change", () => {
    at.hidden = !["offset", "time"].includes(from.value);
    at.placeholder = from.value === "time" ? "2026-01-31T12:00:00" : "0";
  });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); begin(); } },
    h("label", {}, "Where", from), at, h("label", {}, "Subject", subject), h("label", {}, "Key", key), h("label", {}, "How many", limit),
    h("button", { id: "show", class: "main", type: "submit" }, "Show"), h("button", { type: "button", onclick: older }, "Older"),
    h("button", { type: "button", onclick: newer }, "Newer"), tail);
  begin();
  const element = h("section", { "aria-label": "Messages" }, h("div", { class: "head" }, h("h2", {}, "Messages"), note, h("span", { class: "grow" }), shown),
    h("div", { class: "body" }, form), list);
  return { element, stop: () => { turn += 1; endTail(); }, begins: (offset) => { start = offset || 0; } };
}

function messageRow(name, record) {
  const text = (part, encoding, bytes) => part === null ? null : encoding === "utf8" ? part : `${count(bytes)} bytes`;
  const preview = record.value === null ? "tombstone" : text(record.value, record.value_encoding, record.value_size).slice(0, 300);
  const body = h("div");
  const details = h("details", { "data-offset": record.offset, ontoggle: () => { if (details.open && !body.childNodes.length) body.append(...messageBody(name, record)); } },
    h("summary", {}, h("span", { class: "mono" }, String(record.offset)), h("span", { class: "mono dim" }, moment(record.timestamp).slice(0, 23)),
      h("span", { class: "mono" }, record.subject), h("span", { class: "mono" }, record.key === null ? "–" : text(record.key, record.key_encoding, record.key_size)), h("span", { class: "mono" }, preview)), body);
  return details;
}

/** Which parts of a record are not shown whole, and how all of it can be seen. */
function cuts(name, record, showAll) {
  const parts = [["the key", record.key_size], ["the headers", record.headers_size], ["the value", record.value_size]].filter(([, bytes]) => bytes > SHOWN_BYTES);
  if (!parts.length) return [];
  const all = h("a", { href: `${rows(name)}?from=${record.offset}&limit=1`, onclick: (event) => { event.preventDefault(); showAll(); } }, "Show all of it");
  return [h("p", { class: "dim" }, parts.map(([what, bytes]) => `Only the first 64 KiB of ${what}, of ${count(bytes)} bytes. `), all)];
}

function messageBody(name, record, isWhole = false) {
  const facts = [["Offset", String(record.offset)], ["Time (UTC)", moment(record.timestamp)], ["Subject", record.subject]];
  if (record.key !== null) facts.push(["Key", record.key_encoding === "utf8" ? record.key : `base64 ${record.key}`]);
  for (const [title, given] of Object.entries(record.headers)) for (const value of [given].flat()) facts.push([title, value]);
  if (record.value !== null) facts.push(["Size", `${count(record.value_size)} bytes`]);
  const whole = h("div"), problem = h("p", { class: "bad", role: "alert", hidden: true });
  const showAll = async () => {
    try {
      let found = null;
      await events(name, { from: record.offset, limit: 1, follow: false }, undefined, (id, each) => { found = each || found; });
      if (!found || found.offset !== record.offset) throw new Refused("the record is not there any more");
      whole.replaceChildren(...messageBody(name, { ...found, value_size: record.value_size }, true));
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  };
  whole.append(h("dl", {}, facts.map(([title, value]) => [h("dt", {}, title), h("dd", { class: "mono" }, value)])),
    ...(isWhole ? [] : cuts(name, record, showAll)), problem,
    record.value === null ? h("p", { class: "dim" }, "No value: a tombstone.") : h("pre", { tabindex: "0" }, laidOut(record)));
  return [whole];
}

/** Indented JSON, with its numbers as they are written. Other text is not changed. */
function laidOut({ value: text, value_encoding: encoding }) {
  if (encoding !== "utf8") return [`base64 ${text}`];
  if (text.length > LAID_OUT_MAX || !/^\s*[[{]/.test(text)) return [text];
  try { JSON.parse(text); } catch { return [text]; }
  const parts = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, LEVELS_MAX))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"(?:\s*:)?|[[\]{},]|[^\s[\]{},"]+/g)) {
    if (token === "{" || token === "[") { depth += 1; parts.push(token + line()); }
    else if (token === "}" || token === "]") { depth -= 1; parts.push(line() + token); }
    else if (token === ",") parts.push(token + line());
    else if (token.endsWith(":")) parts.push(h("span", { class: "k" }, token.slice(0, -1).trimEnd()), ": ");
    else parts.push(h("span", { class: token.startsWith('"') ? "s" : "l" }, token));
  }
  return parts;
}

// Navigation and refreshing.

let page = null, timer = 0, turn = 0, asked = false, healthTimer = 0, healthTurn = 0;

function decoded(name) {
  try { return decodeURIComponent(name); } catch { return name; } // Somebody has typed a %.
}

function pageOf(hash) {
  const [place, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [kind, name] = place.split("/");
  if (kind === "streams" && name) return streamPage(decoded(name));
  if (kind === "groups" && name) return groupPage(decoded(name));
  if (kind === "consumers") return consumersPage(new URLSearchParams(query));
  return kind === "streams" ? streamsPage(new URLSearchParams(query)) : clusterPage();
}

function open() {
  if (page && page.stop) page.stop();
  page = pageOf(location.hash);
  const inStreams = location.hash.startsWith("#/streams"), inConsumers = /^#\/(consumers|groups)/.test(location.hash);
  for (const [id, here] of [["to-streams", inStreams], ["to-consumers", inConsumers], ["to-cluster", !inStreams && !inConsumers]]) {
    if (here) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  document.title = `${page.title} – Jetstream`;
  scrollTo(0, 0);
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  const mine = turn += 1, current = page, begun = performance.now();
  try {
    if (!document.hidden && !$("dialog").open) {
      const found = await current.look();
      if (mine !== turn) return;
      asked = false;
      const content = current.draw(found);
      if (content) put($("main"), content);
      $("status").textContent = `as of ${new Date(Date.now() + ahead).toISOString().slice(11, 19)} UTC`;
    }
  } catch (error) {
    if (mine !== turn) return;
    $("status").textContent = "";
    const strange = error.status === 401 && !sessionStorage.getItem(TOKEN);
    const message = error instanceof TypeError ? "this node does not answer; trying again" : error.message;
    if (!(error instanceof Refused) && !(error instanceof TypeError)) reportError(error); // A bug: look again all the same.
    put($("main"), strange
      ? h("div", { class: "error", role: "alert" }, "This cluster shows itself to those who log in with a token. An administrator makes one: ", h("code", {}, "jetstream token create user:NAME"))
      : h("div", { class: "error", role: "alert" }, message));
    if (error.status === 401 && !asked) {
      asked = true;
      login();
    }
  }
  // A request that takes long is not repeated more often.
  timer = setTimeout(refresh, Math.max(POLL_MS, 5 * (performance.now() - begun)));
}

async function watchHealth() {
  clearTimeout(healthTimer);
  const mine = healthTurn += 1;
  try {
    const found = await api("cluster");
    if (mine !== healthTurn) return;
    const nodes = found.nodes || [];
    const bad = found.controller < 0 ? "no controller" : nodes.every(isWell) ? "" : "a node is not well";
    const answering = nodes.find((n) => n.address.node_id === found.answering_node);
    if (answering) server = answering.address.grpc;
    put($("health"), h("span", { class: bad ? "bad" : "good" }, bad ? `● ${bad}` : "● nodes are well"));
  } catch (error) {
    if (mine !== healthTurn) return;
    const text = error.status !== 401 ? "no answer" : sessionStorage.getItem(TOKEN) ? "token refused" : "not logged in";
    put($("health"), h("span", { class: "bad" }, `● ${text}`));
  }
  healthTimer = setTimeout(watchHealth, 3 * POLL_MS);
}

addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog").open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const go = { c: "#/", s: "#/streams", r: "#/consumers" }[event.key];
  if (go) location.hash = go;
  else if (event.key === "/") {
    event.preventDefault();
    const field = $("search") || $("subject");
    if (field) field.focus(); else location.hash = "#/streams";
  }
});
$("login").addEventListener("click", login);
$("changes").addEventListener("change", refresh);
showLogin();
watchHealth().then(open);
