"use strict";
// Consumers: groups, queues and cursors, their lag, and moving cursors. Uses the functions of base.js.

const lagOf = (value) => value === null || value === undefined ? "unknown" : count(value);
const behindOf = (seconds) => seconds === null || seconds === undefined ? "unknown" : span(seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds));
const shortStream = (full) => full.split("@")[0];

function cursorTable(found, query, go) {
  const columns = [
    ["Name", (c) => h("a", { id: `cursor-${c.name}-${c.stream_id}`, href: `#/cursors/${encodeURIComponent(c.name)}` }, c.name), "cut main", (c) => c.name],
    ["Stream", (c) => c.stream_id_now === null ? shortStream(c.stream) : h("a", { id: `of-${c.name}-${c.stream_id_now}`, href: `#/${path(c.stream)}`, title: c.stream }, shortStream(c.stream)), "cut", (c) => c.stream],
    ["Next", (c) => count(c.offset), "n", (c) => c.offset],
    ["Lag", (c) => c.state === "current" ? lagOf(c.lag) : h("span", { class: "bad" }, c.state), "n", (c) => c.lag],
    ["Behind", (c) => c.state === "current" ? behindOf(c.lag_seconds) : "–", "n", (c) => c.lag_seconds],
    ["Committed", (c) => h("span", { title: `${moment(c.committed_at)} ${clockName()}` }, ago(c.committed_at)), "n", (c) => c.committed_at],
    ["By", (c) => h("span", { class: "mono" }, visible(c.owner || "by hand")), "cut wide", (c) => c.owner],
  ];
  if (mayChange()) columns.push(["", (c) => [
    c.stream_id_now !== null ? action(`seek-${c.name}-${c.stream_id}`, "Move", () => seekCursor(c)) : null, " ",
    action(`forget-${c.name}-${c.stream_id}`, "Delete", () => deleteCursor(c))]]);
  const start = Number(query.get("start") || 0);
  const pages = go ? pager(found.total, start, go) : null;
  return [table("Cursors", columns, found.cursors, (c) => `${c.name}/${c.stream_id}`), pages];
}

const many = (found) => `${count(found.total)}${found.is_all ? "" : " or more"} ${found.total === 1 ? "cursor" : "cursors"}`;

function seekCursor(cursor) {
  const name = cursor.stream;
  const where = h("select", {}, [["earliest", "The first record"], ["latest", "The end: what comes next"], ["offset", "An offset"], ["time", `A time (${clockName()})`]].map(([value, text]) => h("option", { value }, text)));
  const at = field({ placeholder: "100, or 2026-01-31T12:00:00" });
  const fault = (text) => {
    if (where.value === "offset") return /^\d{1,15}$/.test(text) ? "" : "an offset is a whole number";
    return where.value === "time" && !(timeOf(text) >= 0) ? `a time is written so: 2026-01-31T12:00:00 (${clockName()})` : "";
  };
  where.addEventListener("input", () => { at.required = ["offset", "time"].includes(where.value); });
  const position = (v) => v.where === "offset" ? v.at : v.where === "time" ? new Date(timeOf(v.at)).toISOString() : v.where;
  ask(`Move ${cursor.name} in ${name}`, [["where", "Where its next consumer begins. Stop the one that uses it now: it ends with an error.", where], ["at", "Offset or time", at, fault]],
    (v) => command("cursor", "seek", cursor.name, name, position(v)), (v) => v1(cursorPath(cursor), "PUT", { to: position(v) }));
}

function deleteCursor(cursor) {
  ask(`Forget the position of ${cursor.name} in ${cursor.stream}?`, [], command("cursor", "delete", cursor.name, cursor.stream),
    () => v1(cursorPath(cursor), "DELETE"));
}

const cursorPath = (cursor) => `${path(cursor.stream)}/cursors/${encodeURIComponent(cursor.name)}`;

/** null: unknown. */
const lagInGroup = (group) => group.shares.some((s) => s.lag === null) ? null : group.shares.reduce((sum, s) => sum + s.lag, 0);
const secondsInGroup = (group) => group.shares.some((s) => s.lag_seconds === null) ? null : Math.max(0, ...group.shares.map((s) => s.lag_seconds));
const lagOfGroup = (group) => lagOf(lagInGroup(group));
const behindOfGroup = (group) => behindOf(secondsInGroup(group));

function stateOfGroup(group) {
  if (!group.members.length) return h("span", { class: "dim" }, "empty");
  return group.shares.every((s) => s.owner === s.target) ? h("span", { class: "good" }, "stable") : h("span", { class: "warn" }, "rebalancing");
}

const consumersPage = (query) => ({
  title: "Consumers",
  async look() {
    const asked = new URLSearchParams({ match: query.get("match") || "", start: query.get("start") || 0, limit: PAGE });
    const [groups, cursors, shared] = await Promise.all([api("groups"), v1(`cursors?${asked}`), api("consumers").catch((error) => ({ error }))]);
    return { groups: groups.groups, cursors, shared };
  },
  draw({ groups, cursors, shared }) {
    const go = (more) => { location.hash = `#/consumers?${new URLSearchParams({ ...Object.fromEntries(query), ...more })}`; };
    const columns = [
      ["Name", (g) => h("a", { id: `group-${g.name}`, href: `#/groups/${encodeURIComponent(g.name)}` }, g.name), "cut main", (g) => g.name],
      ["Reads", (g) => g.source, "cut", (g) => g.source],
      ["State", (g) => stateOfGroup(g), "", (g) => stateOfGroup(g).textContent],
      ["Members", (g) => count(g.members.length), "n", (g) => g.members.length],
      ["Streams", (g) => count(g.shares.length), "n", (g) => g.shares.length],
      ["Lag", (g) => lagOfGroup(g), "n", (g) => lagInGroup(g)],
      ["Behind", (g) => behindOfGroup(g), "n", (g) => secondsInGroup(g)],
    ];
    const [rows, pages] = cursorTable(cursors, query, go);
    return [h("h1", {}, "Consumers"),
      section(several(groups.length, "group"), command("group", "list"), table("Groups", columns, groups, (g) => g.name)),
      sharedSection(shared, command("consumer", "list"), "Consumers of queues"),
      section(many(cursors), command("cursor", "list"), rows, searchField("Cursor or stream", query, go), pages)];
  },
});

const LAG = [["Lag, of all its streams", "lag", whole]];

const cursorPage = (name) => {
  const past = historyOf({ cursor: name }, LAG);
  return {
    title: name,
    look() {
      past.look();
      return v1(`cursors?${new URLSearchParams({ name, limit: PAGE })}`);
    },
    draw: (found) => [h("h1", {}, name), section(many(found), command("cursor", "list", "--cursor", name), cursorTable(found, new URLSearchParams(), null)[0]), past.element],
  };
};

const groupPage = (name) => {
  const past = historyOf({ cursor: name }, LAG);
  return {
    title: name,
    look() {
      past.look();
      return api(`groups?${new URLSearchParams({ group: name })}`);
    },
    draw: (found) => drawGroup(name, found.groups[0], past),
  };
};

function drawGroup(name, group, past) {
  if (!group) return [h("h1", {}, name), h("div", { class: "empty" }, "There is no such group, or you may not read its streams.")];
  const members = new Map(group.members.map((m) => [m.id, m.instance || m.id]));
  const columns = [
    ["Stream", (s) => s.stream ? h("a", { id: `to-${s.stream_id}`, href: `#/${path(s.stream)}`, title: s.stream }, shortStream(s.stream)) : h("span", { class: "bad" }, "gone"), "cut main", (s) => s.stream],
    ["Member", (s) => h("span", { class: "mono" }, members.get(s.owner) || "nobody", s.owner !== s.target ? h("span", { class: "warn" }, ` → ${members.get(s.target) || "nobody"}`) : null), "cut", (s) => members.get(s.owner)],
    ["Next", (s) => s.offset === null ? "not begun" : count(s.offset), "n", (s) => s.offset],
    ["Lag", (s) => lagOf(s.lag), "n", (s) => s.lag],
    ["Behind", (s) => behindOf(s.lag_seconds), "n", (s) => s.lag_seconds],
  ];
  if (mayChange()) columns.push(["", (s) => s.stream && s.offset !== null ? action(`seek-${s.stream_id}`, "Move", () => seekCursor({ name: group.name, stream: s.stream })) : null]);
  const sessions = [["Name", (m) => m.instance || "–", "cut main", (m) => m.instance], ["Member", (m) => h("span", { class: "mono" }, m.id), "cut"],
    ["Streams", (m) => count(group.shares.filter((s) => s.owner === m.id).length), "n"], ["Session", (m) => span(m.session_timeout_ms / 1000), "n"]];
  return [
    h("h1", {}, group.name),
    h("div", { class: "cards" }, card("State", stateOfGroup(group)), card("Reads", group.source), card("Lag", lagOfGroup(group)), card("Behind", behindOfGroup(group)), card("Generation", count(group.generation))),
    section("Streams", command("group", "describe", group.name), table("Shares", columns, group.shares, (s) => s.stream_id)),
    past.element,
    section("Members", command("group", "describe", group.name), table("Members", sessions, group.members, (m) => m.id)),
  ];
}

/** The readers of a stream: parts of its page. */
const sharedOf = (name) => api(`consumers?${new URLSearchParams({ stream: name })}`);

const secondsOpen = (consumer) => Number(consumer.ack_pending) ? consumer.oldest_unacknowledged_ms / 1000 : null;

/** Consumers whose readers share a stream's messages and acknowledge each. */
function sharedSection(found, text, title, ofStream = false) {
  if (found.error) return section("Consumers", "", h("div", { class: "error", role: "alert" }, `unknown now: ${found.error.message}`));
  const columns = [
    ["Name", (c) => [c.name, Number(c.paused_until_us) ? h("span", { class: "warn" }, " paused") : null], "cut main", (c) => c.name],
    ...(ofStream ? [] : [["Stream", (c) => h("a", { href: `#/${path(c.stream)}`, title: c.stream }, shortStream(c.stream)), "cut", (c) => c.stream]]),
    ["Pending", (c) => Number(c.pending) < 0 ? "unknown" : count(c.pending), "n", (c) => Number(c.pending)],
    ["Unacknowledged", (c) => count(c.ack_pending), "n", (c) => Number(c.ack_pending)],
    ["Oldest", (c) => secondsOpen(c) === null ? "–" : behindOf(secondsOpen(c)), "n", secondsOpen],
    ["Redelivered", (c) => count(c.redelivered), "n", (c) => Number(c.redelivered)],
    ["Given up", (c) => h("span", { class: Number(c.given_up) ? "warn" : "" }, count(c.given_up)), "n", (c) => Number(c.given_up)],
    ["Dead letters", (c) => c.dead_letter ? h("span", { class: "mono" }, c.dead_letter) : c.max_deliver ? "none kept" : "–", "cut wide", (c) => c.dead_letter],
    ["Readers wait", (c) => count(c.waiting), "n", (c) => Number(c.waiting)],
  ];
  return section(title || several(found.consumers.length, "consumer"), text, table("Shared consumers", columns, found.consumers, (c) => `${c.name}/${c.stream_id}`));
}

const streamConsumers = (name, found) => found.error || found.consumers.length ? sharedSection(found, command("consumer", "list", name), "", true) : null;

const cursorsOf = (name) => v1(`${path(name)}/cursors?limit=${PAGE}`);

function streamCursors(name, found) {
  if (found.error) return section("Cursors", "", h("div", { class: "error", role: "alert" }, `unknown now: ${found.error.message}`));
  const [rows] = cursorTable(found, new URLSearchParams(), null);
  return section(many(found), command("cursor", "list", "--stream", name), rows);
}
