"use strict";
// The page of the cluster, and what is wrong with it.

let latestCluster = null; // the last answer about the cluster

const isWell = (node) => !node.fenced && !(node.not_ready || []).length;
const nodeOf = (id) => latestCluster && (latestCluster.nodes || []).find((node) => node.address.node_id === id);
const isDown = (id) => Boolean(nodeOf(id) && nodeOf(id).fenced);

const STREAM_STATES = [
  ["leaderless", "Leaderless", "without a leader", "bad"],
  ["below-minimum", "Below minimum", "below the minimum of replicas in sync", "bad"],
  ["under-replicated", "Under-replicated", "under-replicated", "warn"],
];
const streamsIn = (found, state) => (found.stream_states || {})[state.replace("-", "_")];
const several = (number, what) => `${count(number)} ${what}${Number(number) === 1 ? "" : "s"}`;

/** The worst thing, in words, as a class, and the page that shows it. */
function worst(found) {
  const nodes = found.nodes || [], down = nodes.filter((n) => n.fenced), others = nodes.filter((n) => !n.fenced && !isWell(n));
  const among = ([state, , words, kind]) => {
    const number = streamsIn(found, state);
    return number ? [`${several(number, "stream")} ${words}`, kind, `#/streams?state=${state}`] : null;
  };
  const [leaderless, below, under] = STREAM_STATES.map(among);
  return (found.controller < 0 ? ["no controller", "bad", "#/"] : null) || leaderless
    || (down.length ? [`${several(down.length, "node")} not heard`, "bad", "#/"] : null)
    || (others.length ? [`node ${others[0].address.node_id}: ${others[0].not_ready[0]}`, "bad", "#/"] : null)
    || below || under || [sessionStorage.getItem(TOKEN) && !streamsIn(found, "all") ? "nodes are well; you see no streams" : "all is well", "good", "#/"];
}

function natsState(nodes) {
  const heard = nodes.filter((n) => !n.fenced), without = heard.filter((n) => (n.not_ready || []).some((reason) => reason.includes("NATS")));
  if (!without.length) return ["connected", "good"];
  return [without.length === heard.length ? "not connected" : `not on ${without.map((n) => n.address.node_id).join(", ")}`, "bad"];
}

const clusterPage = () => {
  const past = historyOf({}, [["Records a second", "records", perSecond], ["Bytes a second", "bytes", bytesPerSecond], ["Under-replicated streams", "under_replicated", whole], ["Free disk", "disk_free_bytes", (value) => size(Math.round(value))]]);
  return {
    title: "Cluster",
    look() {
      past.look();
      return api("cluster");
    },
    draw: (found) => drawCluster(found, past),
  };
};

function drawCluster(found, past) {
  const nodes = found.nodes || [];
  const full = (use) => Math.min(1, Number(use.disk_reserve_bytes) / Math.max(1, Number(use.disk_free_bytes)));
  const room = (use) => use ? [h("meter", { min: 0, max: 1, low: 0.5, high: 0.999, optimum: 0, value: full(use), "aria-label": "Free space until the reserve" }), ` ${size(use.disk_free_bytes)} free`] : "–";
  const columns = [
    ["Node", (n) => [String(n.address.node_id), n.address.node_id === found.controller ? h("span", { class: "dim" }, " controller") : null], "", (n) => n.address.node_id],
    ["State", (n) => state(n), "text", (n) => Number(isWell(n))],
    ["Voter", (n) => n.voter === undefined ? "–" : n.voter ? "yes" : "no", "", (n) => Number(n.voter ?? -1)],
    ["Rack", (n) => n.rack || "–", "", (n) => n.rack],
    ["Incarnation", (n) => h("span", { class: "mono" }, String(n.incarnation)), "n wide", (n) => Number(n.incarnation)],
    ["Leads", (n) => n.use ? `${count(n.use.streams_led)} of ${count(n.use.streams)}` : "–", "n", (n) => n.use && n.use.streams_led],
    ["Logs", (n) => n.use ? size(n.use.log_bytes) : "–", "n", (n) => n.use && Number(n.use.log_bytes)],
    ["Disk", (n) => room(n.use), "n", (n) => n.use && Number(n.use.disk_free_bytes)],
    ["Address", (n) => h("span", { class: "mono" }, n.address.grpc), "cut", (n) => n.address.grpc],
  ];
  if (mayChange()) columns.push(["", (n) => action(`drain-${n.address.node_id}`, n.draining ? "Take work again" : "Drain", () => drain(n))]);
  const well = nodes.filter(isWell).length, [nats, natsKind] = natsState(nodes);
  return [
    h("h1", {}, "Cluster"),
    h("div", { class: "cards" },
      card("Nodes", `${well} of ${nodes.length}`, well === nodes.length ? "good" : "bad"),
      card("Controller", found.controller < 0 ? "none" : `node ${found.controller}`, found.controller < 0 ? "bad" : ""),
      card("NATS", nats, natsKind),
      ...(found.stream_states ? [card("Streams", count(found.stream_states.all), "", "#/streams"),
        ...STREAM_STATES.map(([name, title, , kind]) => { const number = streamsIn(found, name); return card(title, count(number), number ? kind : "", `#/streams?state=${name}`); })] : []),
      card("Version", found.server_version)),
    section("Nodes", command("cluster", "status"), table("Nodes", columns, nodes, (n) => n.address.node_id)),
    past.element,
    section("NATS", command("cluster", "status"), h("div", { class: "body mono" }, (found.nats || []).join(", ") || "–")),
    h("p", { class: "dim mono" }, `cluster ${found.cluster_id}`),
  ];
}

function state(node) {
  if (node.fenced) return h("span", { class: "bad" }, "down: not heard");
  const reasons = node.not_ready || [];
  if (reasons.length) return h("span", { class: "bad" }, `not ready: ${reasons.join(", ")}`);
  if (node.disk_full) return h("span", { class: "warn" }, "disk was full: gets no new streams for a minute");
  return node.draining ? h("span", { class: "warn" }, "draining") : h("span", { class: "good" }, "serving");
}

function drain(node) {
  const id = node.address.node_id;
  const words = ["node", "drain", String(id), ...(node.draining ? ["--undo"] : [])];
  ask(node.draining ? `Let node ${id} lead again?` : `Move all leaderships away from node ${id}?`, [], command(...words),
    () => api(`nodes/${id}/drain`, { draining: !node.draining }));
}
