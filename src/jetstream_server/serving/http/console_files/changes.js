"use strict";
// Questions before changes, logging in, and the forms of a stream's settings.

const mayChange = () => $("changes").checked;

/** fields: [name, label, input, fault, rare]. What is rare is folded away. fault(text): what is wrong with it; "": nothing. text: the command that would do
 * the same, perhaps of the values; it is shown only while all of them are good. */
function ask(title, fields, text, act) {
  const dialog = $("dialog");
  const problem = h("div", { class: "error", role: "alert", hidden: true });
  const below = new Map(fields.map(([name]) => [name, h("span", { class: "problem", id: `problem-${name}`, role: "alert" })]));
  const inputs = fields.map(([name, label, input]) => {
    input.name = name;
    input.setAttribute("aria-describedby", `problem-${name}`);
    return h("label", {}, label, input, below.get(name));
  });
  const isRare = (at) => Boolean(fields[at][4]);
  const more = h("details", { class: "more" }, h("summary", {}, "More settings"), inputs.filter((_, at) => isRare(at)));
  const comeTo = (name) => {
    const at = fields.findIndex(([each]) => each === name);
    more.open ||= isRare(at);
    fields[at][2].focus(); // Of a long form it may be out of sight.
  };
  const shown = h("code"), line = h("span", { class: "command", hidden: true }, shown);
  const ok = h("button", { class: "main", type: "submit" }, "OK");
  const valueOf = (input) => input.type === "checkbox" ? input.checked : input.type === "textarea" ? input.value : input.value.trim();
  const values = () => Object.fromEntries(fields.map(([name, , input]) => [name, valueOf(input)]));
  const touched = new Set();
  const look = (all) => { // Returns whether everything is good. What nobody has come to yet is not complained of.
    const given = values();
    let good = true;
    for (const [name, , input, fault] of fields) {
      const wrong = fault && given[name] ? fault(given[name]) : input.required && !given[name] ? "it is needed" : "";
      good &&= !wrong;
      below.get(name).textContent = all || touched.has(name) ? wrong : "";
    }
    shown.textContent = !text || !good ? "" : typeof text === "function" ? text(given) : text;
    line.hidden = !shown.textContent;
    return good;
  };
  const refuse = (message) => { // Under the field that it names, if there is one.
    const named = fields.find(([name]) => new RegExp(`\\b${name}\\b`).test(message) && name.length > 3);
    if (named) {
      below.get(named[0]).textContent = message;
      comeTo(named[0]);
    }
    problem.textContent = message;
    problem.hidden = Boolean(named);
  };
  const submit = async (event) => {
    event.preventDefault();
    if (ok.disabled) return; // It is asked for already.
    if (!look(true)) return comeTo(fields.find(([name]) => below.get(name).textContent)[0]);
    ok.disabled = true;
    problem.hidden = true;
    try {
      await act(values());
      if (dialog.contains(form)) dialog.close(); // Another question may be open by now.
      refresh();
    } catch (error) {
      refuse(error.message);
    }
    ok.disabled = false;
  };
  const form = h("form", { novalidate: true, onsubmit: submit, oninput: (event) => { touched.add(event.target.name); look(false); } },
    h("h2", {}, title), inputs.filter((_, at) => !isRare(at)), fields.some((_, at) => isRare(at)) ? more : null, problem, line,
    h("div", { class: "row" }, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      ok));
  look(false);
  dialog.replaceChildren(form);
  dialog.showModal();
}

/** Something that is said once. */
function tell(title, ...content) {
  const dialog = $("dialog");
  dialog.replaceChildren(h("form", { method: "dialog" }, h("h2", {}, title), content, h("div", { class: "row" }, h("button", { class: "main" }, "Close"))));
  if (!dialog.open) dialog.showModal();
}

/** A word with what it means: by the mouse, and by a click where there is none. */
const explained = (word, meaning) => meaning ? h("button", { class: "explained", type: "button", title: meaning, onclick: () => tell(word, h("p", { class: "lines" }, meaning)) }, word) : word;

/** What settings mean, by the server's table. */
const meaningOf = (...names) => SETTINGS.filter(({ name }) => names.includes(name)).map(({ label }) => label).join("\n");

function action(id, label, act) {
  return mayChange() ? h("button", { id, class: "small change", type: "button", onclick: act }, label) : null;
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

const field = (attributes = {}) => h("input", attributes);

// The settings of a stream, by SETTINGS, the server's table (settings.js). A form has them as text, flags as true or false.

const spelled = (setting, choice) => `${setting.name}_${choice}`.toUpperCase().replaceAll("-", "_");

const UNITS = { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
const POWERS = ["", "k", "m", "g", "t"];

/** Seconds of a text like the command line's, as 90s, 1h30m or 7d; null: it is none. */
function secondsOf(text) {
  if (/^0+(\.0+)?$/.test(text)) return 0;
  const parts = [...text.matchAll(/(\d+(?:\.\d+)?)(ms|[smhdw])/g)];
  return parts.length && parts.map(([whole]) => whole).join("") === text ? parts.reduce((sum, [, number, unit]) => sum + number * UNITS[unit], 0) : null;
}

/** Bytes of a text like the command line's, as 512KiB, 10GB or a number; null: it is none. */
function bytesOf(text) {
  const found = /^(\d+(?:\.\d+)?) *([kmgt]?)(i?)b?$/i.exec(text);
  return found ? Math.floor(found[1] * (found[3] ? 1024 : 1000) ** POWERS.indexOf(found[2].toLowerCase())) : null;
}

function durationText(seconds) {
  let rest = Math.round(seconds * 1000), text = "";
  for (const unit of ["d", "h", "m", "s", "ms"]) {
    const length = UNITS[unit] * 1000, number = Math.floor(rest / length);
    if (number) text += number + unit;
    rest -= number * length;
  }
  return text || "0";
}

/** The shortest exact text: a number that no unit divides stays one. */
function bytesText(bytes) {
  const texts = [String(bytes)];
  for (const [unit, base] of [["i", 1024], ["", 1000]])
    for (const [power, letter] of [...POWERS.entries()].slice(1)) if (bytes && bytes % base ** power === 0) texts.unshift(`${bytes / base ** power}${letter === "k" && !unit ? "k" : letter.toUpperCase()}${unit}B`);
  return texts.reduce((best, each) => each.length < best.length ? each : best);
}

const NO_DURATION = (text) => `${text} is not a duration: say 90s, 1h30m or 7d`;
const FAULTS = {
  duration: (text) => secondsOf(text) === null ? NO_DURATION(text) : "",
  bytes: (text) => bytesOf(text) === null ? `${text} is not a size: say 512KiB, 10GB or a number of bytes` : "",
  count: (text) => /^\d+$/.test(text) ? "" : `${text} is not a whole number`,
};
const NAME_FAULT = (text) => /^\w[\w.-]*$/.test(text) ? "" : "a name has letters, digits, _, - and ., and does not begin with - or .";
const SUBJECT_FAULT = (text) => /\s|^\.|\.\.|\.$/.test(text) ? "the tokens between dots must not be empty, nor have white space" : "";

function settingIn(stream, setting) {
  const value = setting.name === "observers" ? stream.observers.length : stream[setting.name];
  if (setting.kind === "flag") return value;
  return setting.kind === "duration" ? durationText(value) : setting.kind === "bytes" ? bytesText(value) : String(value);
}

function settingOut(setting, value) {
  if (setting.kind === "choice") return spelled(setting, value);
  return setting.kind === "duration" ? String(Math.round(secondsOf(value) * 1e6)) : setting.kind === "bytes" ? String(bytesOf(value)) : value;
}

function settingOption(setting, value) {
  const name = setting.name.replaceAll("_", "-");
  return setting.kind === "flag" ? [value ? `--${name}` : `--no-${name}`] : [`--${name}`, value];
}

function settingInput(setting, value) {
  if (setting.kind === "flag") return field({ type: "checkbox", checked: value });
  if (setting.kind !== "choice") return field({ value, autocomplete: "off", inputmode: setting.kind === "count" ? "numeric" : "text" });
  return h("select", {}, (value ? [] : [""]).concat(setting.choices).map((choice) => h("option", { value: choice, selected: choice === value }, choice || "by default")));
}

const USUAL = new Set(["replicas", "min_insync_replicas", "max_age", "max_bytes", "max_messages", "compact"]);

/** The part of a form for these settings. before: as they are, by name; "": not set. */
const settingForm = (settings, before) => {
  const changed = (v) => settings.filter(({ name }) => v[name] !== undefined && v[name] !== "" && v[name] !== before[name]);
  return {
    inputs: settings.map((each) => [each.name, each.label, settingInput(each, before[each.name]), FAULTS[each.kind], !USUAL.has(each.name)]),
    options: (v) => changed(v).flatMap((each) => settingOption(each, v[each.name])),
    config: (v) => Object.fromEntries(changed(v).map((each) => [each.field, settingOut(each, v[each.name])])),
  };
};

function create() {
  const form = settingForm(SETTINGS, Object.fromEntries(SETTINGS.map(({ name, kind }) => [name, kind === "flag" ? false : ""])));
  const words = (v) => command("stream", "create", v.name, "--subject", v.subject, ...form.options(v));
  ask("Create a stream", [
    ["name", "Name", field({ required: true }), NAME_FAULT], ["subject", "NATS subject; * and > as in NATS", field({ required: true }), SUBJECT_FAULT],
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
  const list = (value) => field({ inputmode: "numeric", value: value.join(",") });
  const fault = (text) => /^\d+(\s*,\s*\d+)*$/.test(text) ? "" : "nodes are written so: 0,1,2";
  ask(`Move ${name}`, [
    ["replicas", "Nodes of its replicas, as 0,1,2; it leaves others once these have all of it", list(before.replicas), fault],
    ["observers", "Nodes of its observers (empty: none); one that is named as a replica is promoted", list(before.observers), fault],
  ], words, (v) => api(`${path(name)}/reassign`, { replicas: nodes(v.replicas), ...(observe(v) ? { observers: { nodes: nodes(v.observers) } } : {}) }));
}

function transfer(name, node) {
  ask(`Make node ${node} the leader of ${name}?`, [], command("stream", "transfer-leader", name, String(node)),
    () => api(`${path(name)}/transfer-leader`, { node_id: node }));
}
