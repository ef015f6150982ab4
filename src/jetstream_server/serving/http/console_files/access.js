"use strict";
// Who may do what: rules and tokens.

const accessPage = () => ({
  title: "Access",
  look: () => api("access"),
  draw(found) {
    const rules = found.rules || [], tokens = found.tokens || [];
    const about = (r) => r.stream || r.subject || r.cursor ? [r.stream && `stream ${r.stream}`, r.subject && `subject ${r.subject}`, r.cursor && `cursor ${r.cursor}`].filter(Boolean).join(", ") : "the cluster";
    const ruleColumns = [
      ["Principal", (r) => visible(r.principal), "cut main", (r) => r.principal],
      ["Rule", (r) => h("span", { class: r.allow ? "good" : "bad" }, r.allow ? "allows" : "denies"), "", (r) => Number(r.allow)],
      ["Operations", (r) => r.operations.join(", "), "cut", (r) => r.operations.join()],
      ["On", (r) => about(r), "text", about],
      ["Rule id", (r) => String(r.id), "n", (r) => Number(r.id)],
    ];
    const date = (us) => moment(new Date(Number(us) / 1000).toISOString()).slice(0, 16);
    const tokenColumns = [
      ["Principal", (t) => visible(t.principal), "cut main", (t) => t.principal],
      ["Token id", (t) => h("span", { class: "mono" }, t.id), "cut", (t) => t.id],
      [`Created (${clockName()})`, (t) => date(t.created_at_us), "n", (t) => Number(t.created_at_us)],
      [`Expires (${clockName()})`, (t) => Number(t.expires_at_us) ? date(t.expires_at_us) : "never", "n", (t) => Number(t.expires_at_us)],
    ];
    if (mayChange()) {
      ruleColumns.push(["", (r) => action(`remove-${r.id}`, "Remove", () => removeRule(r))]);
      tokenColumns.push(["", (t) => action(`revoke-${t.id}`, "Revoke", () => revokeToken(t))]);
    }
    return [h("h1", {}, "Access"),
      found.security_off ? h("div", { class: "error" }, "This cluster is open: security is off, and whoever reaches its ports may read and change everything. Rules and tokens are kept, and not asked for. ", h("code", {}, "security: {enabled: true}"), " in the configuration of the nodes switches it on.") : null,
      section(several(rules.length, "rule"), command("acl", "list"), table("Rules", ruleColumns, rules, (r) => r.id), action("add-rule", "Add a rule", addRule)),
      section(several(tokens.length, "token"), command("token", "list"), table("Tokens", tokenColumns, tokens, (t) => t.id), action("create-token", "Create a token", createToken)),
    ].filter(Boolean);
  },
});

const principalOf = (text) => text === "*" || text.includes(":") ? text : `user:${text}`;

function addRule() {
  const effect = h("select", {}, [["allow", "Allow"], ["deny", "Deny"]].map(([value, text]) => h("option", { value }, text)));
  const streams = (v) => v.stream || (v.subject || v.cursor ? "*" : "");
  const operations = (v) => v.operations.split(",").map((word) => word.trim()).filter(Boolean);
  const words = (v) => ["acl", "add", principalOf(v.principal), `--${v.effect}`, operations(v).join(), ...["stream", "subject", "cursor"].flatMap((name) => v[name] ? [`--${name}`, v[name]] : []), ...(streams(v) ? [] : ["--cluster"])];
  const rule = (v) => ({ principal: principalOf(v.principal), operations: operations(v), allow: v.effect === "allow", stream: streams(v), subject: v.subject, cursor: v.cursor });
  ask("Add a rule", [
    ["principal", "Principal, as user:NAME; * is everybody", field({ required: true, placeholder: "user:reports" })],
    ["effect", "What it does", effect],
    ["operations", "Operations, as read,describe; all", field({ required: true, placeholder: "read,describe" })],
    ["stream", "Streams, as orders or cust-* (empty: a rule about the cluster, or by subject)", field()],
    ["subject", "Subjects, as in NATS", field()],
    ["cursor", "Cursors and groups, for commit", field()],
  ], (v) => command(...words(v)), (v) => api("access/rules", { rule: rule(v) }));
}

function removeRule(rule) {
  ask(`Remove rule ${rule.id} of ${rule.principal}?`, [], command("acl", "remove", String(rule.id)), () => api(`access/rules/${rule.id}/remove`, {}));
}

function createToken() {
  ask("Create a token", [
    ["principal", "Principal, as user:NAME", field({ required: true, placeholder: "user:reports" })],
    ["lifetime", "How long it is good, as 90d (empty: it does not expire)", field({ value: "90d" }), FAULTS.duration],
  ], (v) => command("token", "create", principalOf(v.principal), "--expires", v.lifetime || "never"), async (v) => {
    const made = await api("access/tokens", { principal: principalOf(v.principal), lifetime_us: v.lifetime ? String(Math.round(secondsOf(v.lifetime) * 1e6)) : "0" });
    tell("The token", "It is shown now, and never again.", copyable(made.text));
  });
}

function revokeToken(token) {
  ask(`Revoke token ${token.id} of ${token.principal}? Connections that came with it are closed.`, [], command("token", "revoke", token.id), () => api(`access/tokens/${encodeURIComponent(token.id)}/revoke`, {}));
}
