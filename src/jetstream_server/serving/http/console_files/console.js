"use strict";
// Navigation and refreshing. Pages have look(), which requests, and draw(found), which shows; stop() ends running requests.

let page = null, drawnPage = null, opened = "", timer = 0, turn = 0, asked = false, healthTimer = 0, healthTurn = 0;

function decoded(name) {
  try { return decodeURIComponent(name); } catch { return name; } // Somebody has typed a %.
}

function pageOf(hash) {
  const [place, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [kind, name] = place.split("/");
  if (kind === "streams" && name) return streamPage(decoded(name));
  if (kind === "groups" && name) return groupPage(decoded(name));
  if (kind === "cursors" && name) return cursorPage(decoded(name));
  if (kind === "access") return accessPage();
  if (kind === "sql") return sqlPage(new URLSearchParams(query));
  if (kind === "consumers") return consumersPage(new URLSearchParams(query));
  return kind === "streams" ? streamsPage(new URLSearchParams(query)) : clusterPage();
}

const PLACES = { streams: "to-streams", consumers: "to-consumers", groups: "to-consumers", cursors: "to-consumers", sql: "to-sql", access: "to-access" };

function open() {
  if (page && page.stop) page.stop();
  const kind = /^#\/(\w*)/.exec(location.hash)?.[1], here = PLACES[kind] || "to-cluster", before = opened;
  page = pageOf(location.hash);
  opened = `${kind} ${page.title}`;
  if (opened !== before) { // Nothing of another page stands under this one's name, however long its node thinks.
    drawnPage = null;
    shows([h("h1", {}, page.title), h("p", { class: "dim", role: "status" }, "loading …")]);
  }
  for (const id of new Set(["to-cluster", ...Object.values(PLACES)])) {
    if (id === here) $(id).setAttribute("aria-current", "page");
    else $(id).removeAttribute("aria-current");
  }
  document.title = `${page.title} – Jetstream`;
  scrollTo(0, 0);
  refresh();
}

const lost = h("div", { class: "error", role: "alert" }); // over what was shown last

/** Links to the page that is open, on the other nodes. */
function others() {
  const nodes = latestCluster ? latestCluster.nodes.filter((n) => !n.fenced && n.address.node_id !== latestCluster.answering_node) : [];
  const reachable = nodes.filter((n) => /^[\w.:[\]-]+$/.test(n.address.http));
  return reachable.map((n, at) => [at ? ", " : " Other nodes: ", h("a", { href: `${location.protocol}//${n.address.http}/${location.hash}` }, `node ${n.address.node_id}`)]);
}

function shows(content) {
  lost.remove();
  $("main").classList.remove("stale");
  if (content) put($("main"), content);
}

/** What was shown last stays, grey, where the node may only be away for a moment. */
function fails(error, current) {
  $("status").textContent = "";
  const isAway = error instanceof TypeError, strange = error.status === 401 && !sessionStorage.getItem(TOKEN);
  if (!(error instanceof Refused) && !isAway) reportError(error); // A bug: look again all the same.
  if (drawnPage === current && (isAway || error.status >= 500)) {
    lost.replaceChildren(`${isAway ? "this node does not answer" : error.message}; trying again. Below is what it said last.`, ...others().flat());
    if (!lost.isConnected) $("main").prepend(lost);
    $("main").classList.add("stale");
    for (const change of document.querySelectorAll("main button.change")) change.disabled = true; // It would act on what may be over.
    return;
  }
  drawnPage = null;
  shows([strange
    ? h("div", { class: "error", role: "alert" }, "This cluster shows itself to those who log in with a token. An administrator makes one: ", h("code", {}, "jetstream token create user:NAME"))
    : h("div", { class: "error", role: "alert" }, isAway ? ["this node does not answer; trying again.", ...others()] : error.message)]);
  if (error.status === 401 && !asked) {
    asked = true;
    login();
  }
}

async function refresh() {
  clearTimeout(timer);
  const mine = turn += 1, current = page, begun = performance.now();
  try {
    if (!document.hidden && !$("dialog").open) {
      const found = await current.look();
      if (mine !== turn) return;
      asked = false;
      shows(current.draw(found));
      drawnPage = current;
      $("status").textContent = `as of ${timeOfDay(Date.now() + ahead)} ${clockName()}`;
    }
  } catch (error) {
    if (mine !== turn) return;
    fails(error, current);
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
    latestCluster = found;
    const answering = nodeOf(found.answering_node), [words, kind, where] = worst(found);
    if (answering) server = answering.address.grpc;
    put($("health"), h("a", { class: kind, href: where, title: words }, `● ${words}`));
    $("open").hidden = Boolean(sessionStorage.getItem(TOKEN)); // It has answered somebody whom it does not know.
  } catch (error) {
    if (mine !== healthTurn) return;
    const text = error.status !== 401 ? "no answer" : sessionStorage.getItem(TOKEN) ? "token refused" : "not logged in";
    put($("health"), h("span", { class: "bad" }, `● ${text}`));
    $("open").hidden = true;
  }
  healthTimer = setTimeout(watchHealth, 3 * POLL_MS);
}

const showClock = () => { $("clock").textContent = isUtc() ? "Times in UTC" : "Times of this computer"; };

addEventListener("hashchange", open);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog").open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const go = { c: "#/", s: "#/streams", r: "#/consumers", q: "#/sql", a: "#/access" }[event.key];
  if (go) location.hash = go;
  else if (event.key === "/") {
    event.preventDefault();
    const field = $("search") || $("subject");
    if (field) field.focus(); else location.hash = "#/streams";
  }
});
$("login").addEventListener("click", login);
$("changes").addEventListener("change", refresh);
$("clock").addEventListener("click", () => {
  localStorage.setItem(CLOCK, isUtc() ? "local" : "utc");
  showClock();
  open(); // What is shown has times of the other clock.
});
showClock();
showLogin();
watchHealth().then(open);
