"use strict";
// The records of a stream: looked for, laid out, followed, published.

const TAIL_MAX = 500;
const PAGE_MS = 10000; // How long a page of records is looked for,
const PAGE_BYTES = 4 * 1024 * 1024; // and how much of them it holds.
const SEARCHED_MAX = 20000; // How many records a search for a text looks at.
const SHOWN_BYTES = 65536; // of a key, a value and all headers of a record, until more is asked for
const LAID_OUT_MAX = 1024 * 1024; // Indenting more would hold up the page.
const LEVELS_MAX = 40; // of JSON, that are indented
const COLUMNS_MAX = 6;
const TEXT = new TextDecoder(), BYTES = new TextEncoder();

/** The bytes of a key or value as the API has it. */
const bytesIn = (text, encoding) => encoding === "utf8" ? BYTES.encode(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Whether a text is in the value or the headers of a record. Binary values have it if its bytes are in them. */
function holds(record, text) {
  const named = Object.entries(record.headers).some(([title, given]) => [title, ...[given].flat()].some((word) => String(word).includes(text)));
  if (named || record.value === null) return named;
  return record.value_encoding === "utf8" ? record.value.includes(text) : atob(record.value).includes(String.fromCharCode(...BYTES.encode(text)));
}

/** A value by a path like items.0.sku, as JSON if it is no text; "": there is none. */
function within(found, path) {
  for (const step of path.split(".")) {
    if (found === null || typeof found !== "object" || !Object.hasOwn(found, step)) return "";
    found = found[step];
  }
  return typeof found === "string" ? found : JSON.stringify(found);
}

/** What a record has for a column: of the fields of its schema or, where these have nothing, of its JSON. */
function cellOf(record, path) {
  const found = record.fields ? within(record.fields, path) : "";
  if ((found && found !== "null") || record.value_encoding !== "utf8" || !record.value) return found;
  try { return within(JSON.parse(record.value), path) || found; } catch { return found; }
}

function messageBrowser(name) {
  const list = h("div", { id: "messages", "aria-live": "off" }, h("div", { class: "empty" }, "Loading…"));
  const from = h("select", { id: "from" }, [["last", "The last records"], ["offset", "From an offset"], ["time", "From a time"], ["earliest", "From the first on"]].map(([value, text]) => h("option", { value }, text)));
  const at = h("input", { id: "at", placeholder: "0", "aria-label": "Offset or time", hidden: true });
  const until = h("input", { id: "until", placeholder: "2026-01-31T13:00:00" });
  const untilLabel = h("label", { hidden: true }, "Until (empty: no end)", until);
  const subject = h("input", { id: "subject", placeholder: "orders.eu.>" });
  const key = h("input", { id: "key" });
  const contains = h("input", { id: "contains", title: "Only records with this text in the value or in a header" });
  const columns = h("input", { id: "columns", placeholder: "order, items.0.sku", title: "Fields of the schema or of JSON values, as columns" });
  const limit = h("input", { id: "limit", type: "number", min: 1, max: 500, value: 50 });
  const note = h("span", { class: "dim", role: "status" });
  const tail = h("button", { id: "tail", type: "button", "aria-pressed": "false" }, "Live tail");
  const shown = h("span", {});
  const heads = h("div", { class: "heads" });
  let page = null, running = null, turn = 0, start = 0, last = null, isTyped = false, isBinary = false;

  const paths = () => columns.value.split(",").map((each) => each.trim()).filter(Boolean).slice(0, COLUMNS_MAX);
  const row = (record) => messageRow(name, record, paths(), isBinary);
  const filters = () => ({ filter: subject.value, ...(key.value && { key: key.value }), ...(isTyped && { typed: true }), bytes_max: SHOWN_BYTES });
  const fetchCommand = (...place) => command("fetch", name, ...place, ...(subject.value ? ["--filter", subject.value] : []), ...(key.value ? ["--key", key.value] : []));

  function layOut() { // Rows are made anew, because their cells depend on the columns.
    const chosen = paths();
    list.style.setProperty("--columns", chosen.map(() => "minmax(60px, .8fr)").join(" ") || "minmax(120px, 2.4fr)");
    heads.style.setProperty("--columns", list.style.getPropertyValue("--columns"));
    heads.replaceChildren(...["Offset", `Time (${clockName()})`, "Subject", "Key", ...(chosen.length ? chosen : ["Value"])].map((title) => h("span", { title }, title)));
  }

  /** Records until there are enough, or PAGE_BYTES of them, or PAGE_MS have passed, or their time is over. Of the last ones the newest are kept. */
  async function fetchPage(query, wanted, keepsLast, end) {
    const ending = new AbortController(), timer = setTimeout(() => ending.abort(), PAGE_MS);
    const records = [], sizes = [], text = contains.value;
    let next = null, bytes = 0, stopped = true, looked = 0;
    try {
      await events(name, { ...filters(), ...query, limit: text ? SEARCHED_MAX : wanted, follow: false }, ending.signal, (id, record) => {
        if (record && end && Date.parse(record.timestamp) >= end) return false; // Exclusive, as --to is.
        next = id + 1;
        if (!record) return true;
        looked += 1;
        if (text && !holds(record, text)) return true;
        records.push(record);
        sizes.push(JSON.stringify(record).length);
        bytes += sizes.at(-1);
        while (keepsLast && (records.length > wanted || bytes - sizes[0] >= PAGE_BYTES)) { bytes -= sizes.shift(); records.shift(); }
        return keepsLast || (bytes < PAGE_BYTES && records.length < wanted);
      });
      stopped = bytes >= PAGE_BYTES && !keepsLast;
    } catch (error) {
      if (!ending.signal.aborted) throw error;
    } finally {
      clearTimeout(timer);
    }
    return { records, next, stopped, looked: text ? looked : null };
  }

  async function show(more, place, keepsLast = false, end = 0) {
    endTail();
    const mine = turn += 1;
    last = () => show(more, place, keepsLast, end);
    try {
      const found = await fetchPage(more, Number(limit.value), keepsLast, end);
      if (mine !== turn) return; // Something else was asked for meanwhile.
      page = found;
      shown.replaceChildren(...(contains.value ? [] : [copyable(fetchCommand(...place))]));
      layOut();
      const lines = page.records.map(row);
      if (keepsLast) lines.reverse(); // Of the last records the newest is on top.
      list.replaceChildren(...(lines.length ? lines : [h("div", { class: "empty" }, "No such record here.")]));
      const first = page.records.length ? page.records[0].offset : null;
      const looked = page.looked === null ? "" : ` of ${count(page.looked)} looked at`;
      const up = page.next === null ? "" : `looked up to offset ${page.next}${looked && `, at ${count(page.looked)}`}`;
      note.textContent = first === null ? up : `${page.records.length} records${looked}, ${first} to ${page.records.at(-1).offset}${page.stopped ? "; Newer goes on" : ""}`;
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
      const [time, end] = [value, until.value.trim()].map((text) => text ? timeOf(text) : 0);
      if (!value || !(time >= 0) || !(end >= 0)) { note.textContent = `a time is written so: 2026-01-31T12:00:00 (${clockName()})`; return undefined; }
      const said = new Date(time).toISOString();
      return show({ from: said }, ["--from", said, ...(end ? ["--to", new Date(end).toISOString()] : []), ...most()], false, end);
    }
    return show({ from: `-${contains.value ? SEARCHED_MAX : limit.value}` }, ["--from", `-${limit.value}`], true);
  }

  const older = () => page && fromOffset(Math.max(start, (page.records.length ? page.records[0].offset : page.next || start) - Number(limit.value)));
  const newer = () => page && page.next !== null && fromOffset(page.next);

  async function follow() {
    const controller = running = new AbortController();
    turn += 1;
    last = null;
    tail.setAttribute("aria-pressed", "true");
    shown.replaceChildren(...(contains.value ? [] : [copyable(fetchCommand("--follow", "--from", "latest"))]));
    layOut();
    let offset = "latest";
    if (list.querySelector(".empty, .error")) list.replaceChildren();
    while (running === controller) {
      try {
        await events(name, { ...filters(), from: offset, follow: true }, controller.signal, (id, record) => {
          offset = id + 1;
          note.textContent = `following, at offset ${offset}`;
          if (!record || (contains.value && !holds(record, contains.value))) return;
          list.prepend(row(record));
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
  columns.addEventListener("change", () => { if (last) last(); else layOut(); });
  from.addEventListener("change", () => {
    at.hidden = !["offset", "time"].includes(from.value);
    untilLabel.hidden = from.value !== "time";
    at.placeholder = from.value === "time" ? "2026-01-31T12:00:00" : "0";
  });
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); begin(); } },
    h("label", {}, "Where", from), at, untilLabel, h("label", {}, "Subject", subject), h("label", {}, "Key", key), h("label", {}, "Contains", contains),
    h("label", {}, "How many", limit), h("label", {}, "Columns", columns),
    h("button", { id: "show", class: "main", type: "submit" }, "Show"), h("button", { type: "button", onclick: older }, "Older"),
    h("button", { type: "button", onclick: newer }, "Newer"), tail);
  begin();
  const element = h("section", { "aria-label": "Records" }, h("div", { class: "head" }, h("h2", {}, "Records"), note, h("span", { class: "grow" }), h("a", { href: `#/sql?${new URLSearchParams({ stream: name })}` }, "Query in SQL"), shown),
    h("div", { class: "body" }, form), heads, list);
  return {
    element, stop: () => { turn += 1; endTail(); }, begins: (offset) => { start = offset || 0; },
    reads: (schema) => {
      const [typed, binary] = [Boolean(schema.fields?.length) && !schema.unread, Boolean(schema.using)];
      if (typed === isTyped && binary === isBinary) return;
      [isTyped, isBinary] = [typed, binary];
      if (running) { endTail(); follow(); } else if (last && (binary || paths().length)) last();
    },
    isShown: (field) => paths().includes(field),
    toggle: (field) => { // Beyond COLUMNS_MAX the first one goes.
      columns.value = (paths().includes(field) ? paths().filter((each) => each !== field) : [...paths(), field].slice(-COLUMNS_MAX)).join(", ");
      columns.dispatchEvent(new Event("change"));
    },
  };
}

/** The fields of a record that is not JSON, as JSON; null: its value is to be shown. */
function fieldsText({ fields, value }) {
  if (!fields || value === null) return null;
  const { _error: error, ...found } = fields;
  return Object.values(found).every((each) => each === null) && error ? null : JSON.stringify(found);
}

function messageRow(name, record, paths = [], isBinary = false) {
  const text = (part, encoding, bytes) => part === null ? null : encoding === "utf8" ? part : `${count(bytes)} bytes`;
  const fields = isBinary ? fieldsText(record) : null;
  const preview = record.value === null ? "tombstone" : (fields ?? text(record.value, record.value_encoding, record.value_size)).slice(0, 300);
  const cells = [record.subject, record.key === null ? "–" : text(record.key, record.key_encoding, record.key_size),
    ...(paths.length ? paths.map((each) => cellOf(record, each).slice(0, 300)) : [preview])];
  const body = h("div");
  const details = h("details", { "data-offset": record.offset, ontoggle: () => { if (details.open && !body.childNodes.length) body.append(...messageBody(name, record, fields)); } },
    h("summary", {}, h("span", { class: "mono" }, String(record.offset)), h("span", { class: "mono dim" }, moment(record.timestamp).slice(0, 23)),
      cells.map((cell) => h("span", { class: "mono" }, visible(cell)))), body);
  return details;
}

/** Which parts of a record are not shown whole, and how all of it can be seen. */
function cuts(name, record, showAll) {
  const parts = [["the key", record.key_size], ["the headers", record.headers_size], ["the value", record.value_size]].filter(([, bytes]) => bytes > SHOWN_BYTES);
  if (!parts.length) return [];
  const all = h("a", { href: `${rows(name)}?from=${record.offset}&limit=1`, onclick: (event) => { event.preventDefault(); showAll(); } }, "Show all of it");
  return [h("p", { class: "dim" }, parts.map(([what, bytes]) => `Only the first 64 KiB of ${what}, of ${count(bytes)} bytes. `), all)];
}

/** Bytes as offsets, hexadecimal numbers and letters. */
function hexText(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.subarray(at, at + 16)];
    const numbers = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${numbers} ${part.map((byte) => byte > 31 && byte < 127 ? String.fromCharCode(byte) : ".").join("")}`);
  }
  return lines.join("\n");
}

function saved(name, bytes) {
  const url = URL.createObjectURL(new Blob([bytes]));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url));
}

/** The value, in the form that is chosen, with the buttons to choose. fields: what it is by its schema, if it is not JSON. */
function valueOf(name, record, fields) {
  if (record.value === null) return [h("p", { class: "dim" }, "No value: a tombstone.")];
  const formatted = () => laidOut(fields ? { value: fields, value_encoding: "utf8" } : record);
  const shown = h("pre", { tabindex: "0" }, formatted()), whole = bytesIn(record.value, record.value_encoding);
  const forms = [["Formatted", formatted], ["As it is", () => visible(TEXT.decode(whole))], ["Hex", () => [hexText(whole)]]];
  const copy = async (event) => {
    try { await navigator.clipboard.writeText(TEXT.decode(whole)); } catch { getSelection().selectAllChildren(shown); }
    event.target.textContent = "Copied";
    setTimeout(() => { event.target.textContent = "Copy"; }, 1500);
  };
  const buttons = forms.map(([title, make], at) => h("button", { class: "small", type: "button", "aria-pressed": String(!at), onclick: (event) => {
    shown.replaceChildren(h("span", {}, make())); // A call takes fewer arguments than there may be parts.
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === event.target));
  } }, title));
  return [h("div", { class: "row" }, buttons, h("button", { class: "small", type: "button", onclick: copy }, "Copy"),
    h("button", { class: "small", type: "button", onclick: () => saved(`${shortStream(name)}-${record.offset}`, whole) }, "Download")), shown];
}

function messageBody(name, record, fields, isWhole = false) {
  const facts = [["Offset", String(record.offset)], [`Time (${clockName()})`, moment(record.timestamp)], ["Subject", record.subject]];
  if (record.key !== null) facts.push(["Key", record.key_encoding === "utf8" ? record.key : `base64 ${record.key}`]);
  for (const [title, given] of Object.entries(record.headers)) for (const value of [given].flat()) facts.push([title, value]);
  if (record.value !== null) facts.push(["Size", `${count(record.value_size)} bytes`]);
  if (record.fields?._error) facts.push(["Does not fit", record.fields._error]);
  const whole = h("div"), problem = h("p", { class: "bad", role: "alert", hidden: true });
  const showAll = async () => {
    try {
      let found = null;
      await events(name, { from: record.offset, limit: 1, follow: false }, undefined, (id, each) => { found = each || found; });
      if (!found || found.offset !== record.offset) throw new Refused("the record is not there any more");
      whole.replaceChildren(...messageBody(name, { ...found, value_size: record.value_size, fields: record.fields }, fields, true));
    } catch (error) {
      problem.textContent = error.message;
      problem.hidden = false;
    }
  };
  whole.append(h("dl", {}, facts.map(([title, value]) => [h("dt", {}, visible(title)), h("dd", { class: "mono" }, visible(String(value)))])),
    ...(isWhole ? [] : cuts(name, record, showAll)), problem, ...deadLetterOf(name, record), ...valueOf(name, record, fields));
  return [whole];
}

/** Where a dead letter comes from, and what can be done with it. */
function deadLetterOf(name, record) {
  const [stream, offset] = ["Dead-Letter-Stream", "Dead-Letter-Offset"].map((title) => [record.headers[title]].flat()[0]);
  if (!stream || offset === undefined) return [];
  return [h("p", {}, "A dead letter of ", h("a", { href: `#/${path(String(stream))}` }, visible(String(stream))), visible(`, offset ${offset}`)),
    copyable(command("dead-letter", "show", name, String(record.offset))), copyable(command("dead-letter", "retry", name, String(record.offset)))];
}

/** Indented JSON, with its numbers as they are written. Other text is not changed. */
function laidOut({ value: text, value_encoding: encoding }) {
  if (encoding !== "utf8") return [`base64 ${text}`];
  if (text.length > LAID_OUT_MAX || !/^\s*[[{]/.test(text)) return visible(text);
  try { JSON.parse(text); } catch { return visible(text); }
  const parts = [];
  let depth = 0;
  const line = () => `\n${"  ".repeat(Math.min(depth, LEVELS_MAX))}`;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"(?:\s*:)?|[[\]{},]|[^\s[\]{},"]+/g)) {
    if (token === "{" || token === "[") { depth += 1; parts.push(token + line()); }
    else if (token === "}" || token === "]") { depth -= 1; parts.push(line() + token); }
    else if (token === ",") parts.push(token + line());
    else if (token.endsWith(":")) parts.push(h("span", { class: "k" }, visible(token.slice(0, -1).trimEnd())), ": ");
    else parts.push(h("span", { class: token.startsWith('"') ? "s" : "l" }, visible(token)));
  }
  return parts;
}

function produce(stream) {
  const name = fullName(stream), plain = !/[*>]/.test(stream.subject);
  const keyOf = (v) => v.key ? ["--key", v.key] : [];
  ask(`Publish to ${name}`, [
    ["subject", "Subject", field({ required: true, value: plain ? stream.subject : "", placeholder: stream.subject }), SUBJECT_FAULT],
    ["key", "Key (empty: none)", field()], ["value", "Value", h("textarea", { rows: 6 })],
  ], (v) => command("publish", ...keyOf(v), ...(v.value.startsWith("-") ? ["--"] : []), v.subject, v.value), (v) => publishText(name, v));
}
