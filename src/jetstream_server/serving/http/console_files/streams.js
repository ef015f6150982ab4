"use strict";
// The list of streams, and the page of one.

let typing = 0;

const searchField = (what, query, go) => h("input", { id: "search", type: "search", placeholder: what, "aria-label": `Search: ${what}`,
  value: query.get("match") || "", oninput: (event) => {
    clearTimeout(typing);
    const here = location.hash;
    typing = setTimeout(() => { if (location.hash === here) go({ match: event.target.value, start: 0 }); }, 300);
  } });

const STREAM_PARTS = ["match", "state", "sort", "start"];

/** Which part of a long list is shown, and the way to the others. */
const pager = (total, start, go) => total > PAGE ? h("span", { class: "pager" },
  h("button", { id: "before", class: "small", type: "button", disabled: start === 0, onclick: () => go({ start: Math.max(0, start - PAGE) }) }, "Before"),
  ` ${count(start + 1)}–${count(Math.min(start + PAGE, total))} of ${count(total)} `,
  h("button", { id: "after", class: "small", type: "button", disabled: start + PAGE >= total, onclick: () => go({ start: start + PAGE }) }, "After")) : null;

const streamsPage = (query) => ({
  title: "Streams",
  look: () => v1(`streams?${new URLSearchParams({ ...Object.fromEntries(STREAM_PARTS.filter((name) => query.get(name)).map((name) => [name, query.get(name)])), limit: PAGE })}`),
  draw(found) {
    const now = performance.now();
    forgetUnseen(now);
    const start = Number(query.get("start") || 0);
    const go = (more) => { location.hash = `#/streams?${new URLSearchParams({ ...Object.fromEntries(query), ...more })}`; };
    const sort = query.get("sort") || "name";
    const sorting = { by: sort.replace(/^-/, ""), down: sort.startsWith("-"), go: (by, down) => go({ sort: down ? `-${by}` : by, start: 0 }) };
    const columns = [
      ["Name", (s) => [h("a", { id: `to-${s.id}`, href: `#/${path(fullName(s))}` }, s.name), marks(s)], "cut main", "name"],
      ["Subject", (s) => h("span", { class: "mono" }, s.subject || "–"), "cut", "subject"],
      ["Leader", (s) => s.leader < 0 ? h("span", { class: "bad" }, "none") : isDown(s.leader) ? h("span", { class: "bad" }, `${s.leader} down`) : String(s.leader), "n", "leader"],
      ["In sync", (s) => sync(s), "n", "in_sync"],
      ["Records", (s) => records(s), "n", "records"],
      ["Size", (s) => isReported(s) ? size(s.size_bytes) : "unknown", "n", "size"],
      ["Lag", (s) => isReported(s) ? lag(s) : "unknown", "n", "lag"],
      ["Records/s", (s) => rate(latest(s, s.samples)), "n"],
      ["", (s) => chart(s.samples, 120, 24), "wide"],
    ];
    if (found.streams.some((s) => s.lake || s.lake_end_offset)) columns.splice(6, 0, ["In the lake", (s) => s.lake_end_offset ? `to ${count(s.lake_end_offset)}` : "–", "n"]);
    for (const each of found.streams) each.samples = sampled(each.id, end(each), now);
    const state = h("select", { id: "state", "aria-label": "Which streams", onchange: (event) => go({ state: event.target.value, start: 0 }) },
      [["", "All"], ...STREAM_STATES].map(([value, text]) => h("option", { value, selected: value === (query.get("state") || "") }, text)));
    return [h("h1", {}, "Streams"),
      section(several(found.total, "stream"), command("stream", "list"),
        table("Streams", columns, found.streams, (s) => s.id, sorting), searchField("Name or subject", query, go), state, pager(found.total, start, go), action("create", "Create a stream", create))];
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
const offsets = (found) => !isReported(found) ? "unknown" : end(found) === null ? `${count(found.log_start_offset)} – unknown` : end(found) === found.log_start_offset ? (end(found) ? `none below ${count(end(found))}` : "none yet") : `${count(found.log_start_offset)} – ${count(end(found) - 1)}`;

function lag(described) {
  const lags = described.progress.filter((p) => described.replicas.includes(p.node)).map((p) => p.lag);
  if (lags.includes(null)) return "unknown";
  return lags.length ? count(Math.max(0, ...lags)) : "–";
}

const streamPage = (name) => {
  const browser = messageBrowser(name);
  const past = historyOf({ stream: name }, [["Records a second", "records", perSecond], ["Bytes a second", "bytes", bytesPerSecond], ["Size", "size_bytes", (value) => size(Math.round(value))], ["Replicas in sync", "isr", whole]]);
  const overview = h("div");
  return {
    title: name,
    async look() {
      past.look();
      const [stream, cursors, schema] = await Promise.all([v1(path(name)), cursorsOf(name).catch((error) => ({ error })), api(`${path(name)}/schema`).catch((error) => ({ error }))]);
      const shared = await sharedOf(`${stream.name}@${stream.subject}`).catch((error) => ({ error }));
      return { stream, cursors, shared, schema };
    },
    draw(found) {
      browser.begins(found.stream.log_start_offset);
      browser.reads(found.schema);
      put(overview, [...streamOverview(name, found.stream, past), schemaOf(name, found.schema, browser), streamCursors(name, found.cursors), streamConsumers(name, found.shared)].filter(Boolean));
      return overview.isConnected ? null : [overview, browser.element];
    },
    stop: browser.stop,
  };
};

/** The fields of its schema, which can be shown as columns of its records. */
function schemaOf(name, found, browser) {
  if (found.error) return section("Schema", command("schema", "show", name), h("div", { class: "error", role: "alert" }, found.error.message));
  if (!found.fields.length) return section("Schema", command("schema", "set", name, "--infer", "10000"), h("div", { class: "empty" }, "None: values are bytes."));
  const box = (field) => h("input", { type: "checkbox", id: `column-${field.name}`, "aria-label": `Show ${field.name}`, checked: browser.isShown(field.name), onchange: () => browser.toggle(field.name) });
  const columns = [...(found.unread ? [] : [["Column", box]]), ["Field", (field) => field.keys.join(", or ")], ["Type", (field) => `${field.type}${field.required ? " not null" : ""}`, "text"]];
  const earlier = found.versions.slice(0, -1).map((text, at) => [h("dt", {}, `Version ${found.version - found.versions.length + at + 1}`), h("dd", {}, text || "none")]);
  return section(`Schema, version ${found.version}${found.using ? `, ${found.using}` : ""}`, command("schema", "show", name), [found.unread ? h("div", { class: "error", role: "alert" }, found.unread) : null, table("Schema", columns, found.fields, (field) => field.name),
    earlier.length ? h("div", { class: "body" }, h("dl", {}, earlier)) : null]);
}

function streamOverview(name, found, past) {
  const stream = found;
  const now = performance.now();
  forgetUnseen(now);
  const samples = sampled(stream.id, end(found), now);
  const progress = new Map(found.progress.map((p) => [p.node, p.offset]));
  const online = found.state === "online";
  const replicas = [...stream.replicas, ...observersOf(stream)].map((node) => ({ node }));
  const role = ({ node }) => [known(node), isDown(node) ? h("span", { class: "bad" }, " node down") : null];
  const known = (node) => node === stream.leader ? "leader" : !stream.replicas.includes(node) ? "observer" : stream.isr.includes(node) ? h("span", { class: "good" }, "in sync") : h("span", { class: "warn" }, "out of sync");
  const offset = ({ node }) => node === stream.leader && isReported(found) ? count(found.log_end_offset) : progress.has(node) && progress.get(node) >= 0 ? count(progress.get(node)) : "unknown";
  const behind = ({ node }) => node === stream.leader ? "–" : progress.has(node) && progress.get(node) >= 0 ? count(found.log_end_offset - progress.get(node)) : "unknown";
  const columns = [["Node", (r) => String(r.node)], ["Role", role], ["Position", offset, "n"], ["Lag", behind, "n"]];
  if (mayChange()) columns.push(["", ({ node }) => node !== stream.leader && stream.isr.includes(node) ? action(`lead-${node}`, "Make it the leader", () => transfer(name, node)) : null]);
  const limits = [stream.max_age > 0 && span(stream.max_age), stream.max_bytes > 0 && size(stream.max_bytes), stream.max_messages > 0 && `${count(stream.max_messages)} records`, stream.compact && "the last record of each key"].filter(Boolean);
  const facts = [
    ["Subject", stream.subject || "none: internal", "It stores what is published on subjects that match this one."],
    ["Keeps", limits.join(", ") || "everything", meaningOf("max_age", "max_bytes", "max_messages", "compact")],
    ["Flush", stream.flush, meaningOf("flush")], ["Acks", stream.acks, meaningOf("acks")],
    ["Encryption", stream.encryption === "node" ? "as the nodes are configured" : stream.encryption, meaningOf("encryption")],
    ...((stream.target_replicas || []).length ? [["Moves to nodes", stream.target_replicas.join(", ")]] : []),
    ["Needs in sync", String(stream.min_insync_replicas), meaningOf("min_insync_replicas")],
    ["Group", stream.group || "–", "Streams of one group share a subject: each message is stored in one of them."],
    ["Leader epoch", String(stream.leader_epoch), "It grows with every leadership of the stream."],
    ["Acks, refusals since start", isReported(found) ? `${count(found.acks_sent)}, ${count(found.nacks_sent)}` : "unknown", "What the leader has answered to publishers."],
    ["Suspected gaps", isReported(found) ? count(found.suspected_gaps) : "unknown", "How often messages may have been missed that were published without asking for an acknowledgement."], [`Created (${clockName()})`, moment(stream.created_at)],
  ];
  past.now.replaceChildren(h("b", {}, rate(latest(found, samples))), " records/s now ", chart(samples, 120, 24));
  return [
    h("h1", {}, stream.name, marks(stream)),
    online ? null : h("div", { class: "error", role: "alert" }, found.state),
    h("div", { class: "cards" },
      card("Records", records(found)), card("Offsets", offsets(found)),
      card("Size", isReported(found) ? size(found.size_bytes) : "unknown"), card("Not committed", end(found) === null ? "unknown" : count(found.log_end_offset - end(found))),
      card("Last record", found.last_append ? ago(found.last_append) : isReported(found) ? "–" : "unknown"),
      stream.lake || stream.lake_end_offset ? card("In the lake", stream.lake_end_offset > stream.lake_start_offset ? `${count(stream.lake_start_offset)} – ${count(stream.lake_end_offset - 1)}` : "nothing yet") : null),
    past.element,
    section("Replicas", command("stream", "describe", name), table("Replicas", columns, replicas, (r) => r.node), action("reassign", "Move", () => reassign(stream))),
    section("Settings", command("stream", "describe", name), h("div", { class: "body" }, h("dl", {}, facts.map(([title, value, meaning]) => [h("dt", {}, explained(title, meaning)), h("dd", {}, value)]))), action("produce", "Publish", () => produce(stream)), action("alter", "Alter", () => alter(stream))),
  ].filter(Boolean);
}

