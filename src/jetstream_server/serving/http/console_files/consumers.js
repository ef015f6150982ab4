"use strict";
// Consumers: groups and cursors, their lag, and moving cursors. Uses the functions of console.js.

const lagOf = (value) => value === null || value === undefined ? "unknown" : count(value);
const behindOf = (seconds) => seconds === null || seconds === undefined ? "unknown" : span(seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds));
const shortStream = (full) => full.split("@")[0];

function cursorTable(found, query, go) {
  const columns = [
    ["Name", (c) => c.name],
    ["Stream", (c) => c.stream_id_now === null ? shortStream(c.stream) : h("a", { id: `of-${c.name}-${c.stream_id_now}`, href: `#/${path(c.stream)}`, title: c.stream }, shortStream(c.stream))],
    ["Next", (c) => count(c.offset), true],
    ["Lag", (c) => c.state === "current" ? lagOf(c.lag) : h("span", { class: "bad" }, c.state), true],
    ["Behind", (c) => c.state === "current" ? behindOf(c.lag_seconds) : "–", true],
    ["Committed", (c) => h("span", { title: `${moment(c.committed_at)} UTC` }, ago(c.committed_at))],
    ["By", (c) => h("span", { class: "mono" }, c.owner || "by hand")],
  ];
  if (mayChange()) columns.push(["", (c) => [
    c.stream_id_now !== null ? action(`seek-${c.name}-${c.stream_id}`, "Move", () => seekCursor(c)) : null, " ",
    action(`forget-${c.name}-${c.stream_id}`, "Delete", () => deleteCursor(c))]]);
  const start = Number(query.get("start") || 0);
  const pages = go && found.total > PAGE ? h("span", {},
    h("button", { id: "before", class: "small", type: "button", disabled: start === 0, onclick: () => go({ start: Math.max(0, start - PAGE) }) }, "Before"),
    ` ${start + 1}–${Math.min(start + PAGE, found.total)} `,
    h("button", { id: "after", class: "small", type: "button", disabled: start + PAGE >= found.total, onclick: () => go({ start: start + PAGE }) }, "After")) : null;
  return [table("Cursors", columns, found.cursors, (c) => `${c.name}/${c.stream_id}`), pages];
}

const many = (found) => `${count(found.total)}${found.is_all ? "" : " or more"} ${found.total === 1 ? "cursor" : "cursors"}`;

function seekCursor(cursor) {
  const name = cursor.stream;
  const where = h("select", {}, [["earliest", "The first record"], ["latest", "The end: what comes next"], ["offset", "An offset"], ["time", "A time (UTC)"]].map(([value, text]) => h("option", { value }, text)));
  const at = field({ placeholder: "100, or 2026-01-31T12:00:00" });
  const position = (v) => {
    if (v.where === "offset") return v.at || "OFFSET";
    if (v.where !== "time") return v.where;
    return Number.isNaN(timeOf(v.at)) ? "TIME" : new Date(timeOf(v.at)).toISOString();
  };
  ask(`Move ${cursor.name} in ${name}`, [["where", "Where its next consumer begins. Stop the one that uses it now: it ends with an error.", where], ["at", "Offset or time", at]],
    (v) => command("cursor", "seek", cursor.name, name, position({ where: v.where || "earliest", at: v.at || "" })), async (v) => {
      if (v.where === "offset" && !/^\d{1,15}$/.test(v.at)) throw new Refused("an offset is a whole number");
      if (v.where === "time" && (Number.isNaN(timeOf(v.at)) || timeOf(v.at) < 0)) throw new Refused("a time is written so: 2026-01-31T12:00:00 (UTC)");
      return v1(cursorPath(cursor), "PUT", { to: position(v) });
    });
}

function deleteCursor(cursor) {
  ask(`Forget the position of ${cursor.name} in ${cursor.stream}?`, [], command("cursor", "delete", cursor.name, cursor.stream),
    () => v1(cursorPath(cursor), "DELETE"));
}

const cursorPath = (cursor) => `${path(cursor.stream)}/cursors/${encodeURIComponent(cursor.name)}`;

const lagOfGroup = (group) => group.shares.some((s) => s.lag === null) ? "unknown" : count(group.shares.reduce((sum, s) => sum + s.lag, 0));
const behindOfGroup = (group) => group.shares.some((s) => s.lag_seconds === null) ? "unknown" : behindOf(Math.max(0, ...group.shares.map((s) => s.lag_seconds)));

function stateOfGroup(group) {
  if (!group.members.length) return h("span", { class: "dim" }, "empty");
  return group.shares.every((s) => s.owner === s.target) ? h("span", { class: "good" }, "stable") : h("span", { class: "warn" }, "rebalancing");
}

const consumersPage = (query) => ({
  title: "Consumers",
  async look() {
    const asked = new URLSearchParams({ match: query.get("match") || "", start: query.get("start") || 0, limit: PAGE });
    const [groups, cursors] = await Promise.all([api("groups"), v1(`cursors?${asked}`)]);
    return { groups: groups.groups, cursors };
  },
  draw({ groups, cursors }) {
    const go = (more) => { location.hash = `#/consumers?${new URLSearchParams({ ...Object.fromEntries(query), ...more })}`; };
    const columns = [
      ["Name", (g) => h("a", { id: `group-${g.name}`, href: `#/groups/${encodeURIComponent(g.name)}` }, g.name)],
      ["Reads", (g) => g.source],
      ["State", (g) => stateOfGroup(g)],
      ["Members", (g) => count(g.members.length), true],
      ["Streams", (g) => count(g.shares.length), true],
      ["Lag", (g) => lagOfGroup(g), true],
      ["Behind", (g) => behindOfGroup(g), true],
    ];
    const [rows, pages] = cursorTable(cursors, query, go);
    return [h("h1", {}, "Consumers"),
      section(`${count(groups.length)} ${groups.length === 1 ? "group" : "groups"}`, command("group", "list"), table("Groups", columns, groups, (g) => g.name)),
      section(many(cursors), command("cursor", "list"), rows, searchField("Cursor or stream", query, go), pages)];
  },
});

const groupPage = (name) => ({
  title: name,
  look: () => api(`groups?${new URLSearchParams({ group: name })}`),
  draw(found) {
    const group = found.groups[0];
    if (!group) return [h("h1", {}, name), h("div", { class: "empty" }, "There is no such group, or you may not read its streams.")];
    const members = new Map(group.members.map((m) => [m.id, m.instance || m.id]));
    const columns = [
      ["Stream", (s) => s.stream ? h("a", { id: `to-${s.stream_id}`, href: `#/${path(s.stream)}`, title: s.stream }, shortStream(s.stream)) : h("span", { class: "bad" }, "gone")],
      ["Member", (s) => h("span", { class: "mono" }, members.get(s.owner) || "nobody", s.owner !== s.target ? h("span", { class: "warn" }, ` → ${members.get(s.target) || "nobody"}`) : null)],
      ["Next", (s) => s.offset === null ? "not begun" : count(s.offset), true],
      ["Lag", (s) => lagOf(s.lag), true],
      ["Behind", (s) => behindOf(s.lag_seconds), true],
    ];
    if (mayChange()) columns.push(["", (s) => s.stream && s.offset !== null ? action(`seek-${s.stream_id}`, "Move", () => seekCursor({ name: group.name, stream: s.stream })) : null]);
    const sessions = [["Name", (m) => m.instance || "–"], ["Member", (m) => h("span", { class: "mono" }, m.id)],
      ["Streams", (m) => count(group.shares.filter((s) => s.owner === m.id).length), true], ["Session", (m) => span(m.session_timeout_ms / 1000), true]];
    return [
      h("h1", {}, group.name),
      h("div", { class: "cards" }, card("State", stateOfGroup(group)), card("Reads", group.source), card("Lag", lagOfGroup(group)), card("Behind", behindOfGroup(group)), card("Generation", count(group.generation))),
      section("Streams", command("group", "describe", group.name), table("Shares", columns, group.shares, (s) => s.stream_id)),
      section("Members", command("group", "describe", group.name), table("Members", sessions, group.members, (m) => m.id)),
    ];
  },
});

/** The readers of a stream: parts of its page. */
const sharedOf = (name) => api(`consumers?${new URLSearchParams({ stream: name })}`);

function streamConsumers(name, found) {
  if (found.error) return section("Consumers", "", h("div", { class: "error", role: "alert" }, `unknown now: ${found.error.message}`));
  const shared = found.consumers;
  if (!shared.length) return null;
  const columns = [
    ["Name", (c) => c.name],
    ["Pending", (c) => count(c.pending), true],
    ["Unacknowledged", (c) => count(c.ack_pending), true],
    ["Oldest", (c) => Number(c.ack_pending) ? span(c.oldest_unacknowledged_ms / 1000) : "–", true],
    ["Redelivered", (c) => count(c.redelivered), true],
    ["Readers wait", (c) => count(c.waiting), true],
  ];
  return section(`${count(shared.length)} ${shared.length === 1 ? "consumer" : "consumers"}`, command("consumer", "list", name), table("Shared consumers", columns, shared, (c) => c.name));
}

const cursorsOf = (name) => v1(`${path(name)}/cursors?limit=${PAGE}`);

function streamCursors(name, found) {
  if (found.error) return section("Cursors", "", h("div", { class: "error", role: "alert" }, `unknown now: ${found.error.message}`));
  const [rows] = cursorTable(found, new URLSearchParams(), null);
  return section(many(found), command("cursor", "list", "--stream", name), rows);
}
