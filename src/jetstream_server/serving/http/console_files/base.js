"use strict";
// What all pages of the console use: elements, words for numbers and times, requests, tables. Text from outside becomes
// text nodes, never markup.

const POLL_MS = 2000;
const PATIENCE_MS = 40000; // A node gives up what it asks of others before.
const PAGE = 200;
const TOKEN = "jetstream-token"; // of this tab only, and gone with it
const CLOCK = "jetstream-clock"; // which clock times are shown by: "utc" or "local"

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
  if (again.tagName === "INPUT" && again.type !== "checkbox" && again !== focused) {
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

const isUtc = () => localStorage.getItem(CLOCK) !== "local";
const clockName = () => isUtc() ? "UTC" : "local time";

/** A time of the API by the chosen clock, with its microseconds. */
function moment(time) {
  if (isUtc()) return time.replace("T", " ").replace("Z", "");
  const date = new Date(time), two = (number) => String(number).padStart(2, "0");
  const fraction = /\.\d+/.exec(time);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}${fraction ? fraction[0] : ""}`;
}

/** Hours, minutes and seconds of milliseconds since 1970. */
const timeOfDay = (ms) => moment(new Date(ms).toISOString()).slice(11, 19);

let ahead = 0; // by how many milliseconds the node's clock is ahead of this one
const ago = (time) => `${span(Math.max(0, Math.round((Date.now() + ahead - Date.parse(time)) / 1000)))} ago`;

/** Milliseconds; NaN for what is no time. Without a zone it is of the chosen clock. Date.parse alone takes a 5 for a day in 2001. */
function timeOf(text) {
  const parts = /^(\d{4}-\d\d-\d\d)(?:[tT ](\d\d:\d\d(?::\d\d(?:\.\d+)?)?))?\s*(?:([zZ])|([+-]\d\d):?(\d\d))?$/.exec(text.trim());
  if (!parts) return NaN;
  const zone = parts[4] ? `${parts[4]}:${parts[5]}` : parts[3] || isUtc() ? "Z" : "";
  return Date.parse(`${parts[1]}T${parts[2] || "00:00"}${zone}`);
}

function span(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]])
    if (seconds >= length) return `${+(seconds / length).toFixed(1)} ${unit}`;
  return `${seconds} s`;
}

/** What an eye does not see, or what turns the order of letters around: controls, zero width, bidi. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Text of strangers as it is: what would not be seen in it is named, so that nothing can pass for something else. */
function visible(text) {
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(UNSEEN)) {
    const code = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    parts.push(text.slice(from, found.index), h("span", { class: "unseen", title: "a character that is not seen" }, `U+${code}`));
    from = found.index + found[0].length;
  }
  return [...parts, text.slice(from)];
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

async function request(where, method, body, token, type = "application/json") {
  const headers = authorization(token), ending = new AbortController();
  const options = { headers, method, signal: ending.signal };
  if (body !== undefined) {
    headers["Content-Type"] = type;
    options.body = type === "application/json" ? JSON.stringify(body) : body;
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

/** Store one record. */
const publishText = (name, { subject, key, value }) => request(`${rows(name)}?${new URLSearchParams({ subject, ...(key ? { key } : {}) })}`, "POST", value, undefined, "text/plain");

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

const sorts = new Map(); // By the label of a table whose rows are all here: which column it is sorted by.

/** What the columns of tables mean, by table and title. */
const MEANINGS = {
  "Streams/Leader": "the node that takes its records and serves its readers",
  "Streams/In sync": "replicas that have every committed record, of all; after +: observers, which do not count",
  "Streams/Records": "offsets that can be read; ≤: compaction has left some without a record",
  "Streams/Lag": "how many records the replica that is furthest behind lacks",
  "Streams/Records/s": "how many became readable in a second",
  "Replicas/Position": "the offset that it writes next", "Replicas/Lag": "how many records it lacks",
  "Groups/Lag": "how many records its members have not read yet", "Groups/Behind": "how long ago the next record to read was stored",
  "Cursors/Next": "the offset that is read next", "Cursors/Lag": "how many records it has not read yet",
  "Cursors/Behind": "how long ago the next record to read was stored", "Cursors/By": "the member of a group, or the program, that committed it",
};

function heading(label, [title, , kind = "", sort], sorting) {
  const meaning = MEANINGS[`${label}/${title}`];
  if (!sort) return h("th", { class: kind, scope: "col", title: meaning }, title);
  const name = typeof sort === "string" ? sort : title, here = sorting.by === name;
  const turn = () => sorting.go(name, here && !sorting.down);
  return h("th", { class: kind, scope: "col", title: meaning, "aria-sort": !here ? "none" : sorting.down ? "descending" : "ascending" },
    h("button", { class: "sort", type: "button", id: `sort-${label}-${title}`, onclick: turn }, title, here ? (sorting.down ? " ↓" : " ↑") : ""));
}

const ordered = (one, other) => typeof one === "string" ? one.localeCompare(other) : (one ?? -1) - (other ?? -1);

/** columns: [title, cell(row), kind, sort]. kind: of the words n (a number), cut (what does not fit is in its title),
 * text (of any length: it wraps), wide (only in wide windows). sort: what a row is sorted by, or the name by which the server does it.
 * sorting: how the server has sorted: {by, down, go(by, down)}; without it the rows are sorted here. */
function table(label, columns, rows, key, sorting = null) {
  if (!rows.length) return h("div", { class: "empty" }, sessionStorage.getItem(TOKEN) ? "Nothing here that you may see." : "Nothing here.");
  const own = sorting || { by: "", down: false, ...sorts.get(label), go: (by, down) => { sorts.set(label, { by, down }); refresh(); } };
  const column = !sorting && columns.find(([title, , , sort]) => sort && title === own.by);
  if (column) rows = [...rows].sort((one, other) => ordered(column[3](one), column[3](other)) * (own.down ? -1 : 1));
  const cells = (row) => columns.map(([title, cell, kind = ""]) => {
    const found = h("td", { class: kind, "data-label": title }, cell(row));
    if (kind.includes("cut")) found.title = found.textContent;
    return found;
  });
  return h("div", { class: "scroll" }, h("table", { "aria-label": label },
    h("thead", {}, h("tr", {}, columns.map((each) => heading(label, each, own)))),
    h("tbody", {}, rows.map((row) => h("tr", { "data-key": key(row) }, cells(row))))));
}

function section(title, text, content, ...more) {
  return h("section", {}, h("div", { class: "head" }, h("h2", {}, title), ...more, h("span", { class: "grow" }),
    text ? copyable(text) : null), content);
}

/** where: a page that shows more of it. */
function card(title, value, kind = "", where = "") {
  const content = [h("span", { class: "dim" }, title), h("b", { class: kind }, value)];
  return where ? h("a", { class: "card", href: where }, content) : h("div", { class: "card" }, content);
}

