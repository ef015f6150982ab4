"use strict";
// Queries as commands to copy: DuckDB runs where the command does, and no node has to bear it.

const sqlText = (text) => `'${String(text).replaceAll("'", "''")}'`;
const sqlName = (name) => `"${String(name).replaceAll('"', '""')}"`;
const asText = (column) => `decode(${column})`;

/** A field of a JSON value; its path as in *Columns*: items.0.sku. */
const sqlField = (path) => `${asText("value")}->>${sqlText(path.split(".").reduce((text, part) => text + (/^\d+$/.test(part) ? `[${part}]` : `."${part}"`), "$"))}`;

const fieldsOf = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

/** What can be asked, by its title. Each makes a query of the parts: {from: the table, fields, where: "" or a clause}. */
const QUERIES = {
  "The last records": ({ from, fields, where, limit }) => `select "offset", timestamp, subject, ${asText("key")} as key, ${fields.length ? fields.map((path) => `${sqlField(path)} as ${sqlName(path)}`).join(", ") : `${asText("value")} as value`}\nfrom ${from}${where}\norder by "offset" desc limit ${limit}`,
  "How many by subject": ({ from, where, limit }) => `select subject, count(*) as records\nfrom ${from}${where}\ngroup by 1 order by 2 desc limit ${limit}`,
  "How many by hour": ({ from, where, limit }) => `select date_trunc('hour', timestamp) as hour, count(*) as records\nfrom ${from}${where}\ngroup by 1 order by 1 desc limit ${limit}`,
  "How many by field": ({ from, fields, where, limit }) => `select ${(fields.length ? fields.map((path) => `${sqlField(path)} as ${sqlName(path)}`) : ["key"]).join(", ")}, count(*) as records\nfrom ${from}${where}\ngroup by all order by records desc limit ${limit}`,
  "The latest of each key": ({ from, where, limit }) => `select ${asText("key")} as key, max("offset") as "offset", ${asText('arg_max(value, "offset")')} as value\nfrom ${from}${where}\ngroup by 1 order by 1 limit ${limit}`,
  "The largest records": ({ from, where, limit }) => `select "offset", subject, octet_length(value) as bytes\nfrom ${from}${where}\norder by 3 desc limit ${limit}`,
};

/** What is wrong with a position like the command line's; "": nothing. */
const positionFault = (text) => /^(earliest|latest|last:\d+|-?\d+)$/.test(text) || secondsOf(text) !== null || timeOf(text) >= 0 ? "" : `${text} is no position: say earliest, an offset, -100, 1h or 2026-01-31`;

const sqlPage = (query) => {
  const place = h("datalist", { id: "tables" });
  const inputs = {
    table: field({ id: "table", list: "tables", value: query.get("stream") || "", placeholder: "orders, or cust-*", autocomplete: "off" }),
    what: h("select", {}, Object.keys(QUERIES).map((title) => h("option", {}, title))),
    fields: field({ placeholder: "order, items.0.sku" }), where: field({ placeholder: "subject like 'orders.eu%'" }),
    limit: field({ value: "20", inputmode: "numeric" }), from: field({ placeholder: "earliest, 1h, -1000" }), to: field({ placeholder: "latest" }),
    json: field({ type: "checkbox" }),
  };
  const text = h("textarea", { id: "query", rows: 5, spellcheck: "false", "aria-label": "Query", class: "mono" });
  const problem = h("div", { class: "problem", role: "alert" }), shown = h("div", { class: "body whole" });
  const value = (name) => inputs[name].value.trim();
  const say = () => {
    const wrong = [!text.value.trim() && "say a query", ...["from", "to"].map((name) => value(name) && positionFault(value(name)))].filter(Boolean);
    problem.textContent = value("table") || text.value.trim() ? wrong.join("; ") : "";
    const bounds = ["from", "to"].flatMap((name) => value(name) ? [`--${name}`, value(name)] : []);
    put(shown, wrong.length ? h("span", { class: "dim" }, "The command is shown here once there is a query.") : copyable(command("sql", ...bounds, ...(inputs.json.checked ? ["--json"] : []), text.value.trim())));
  };
  const make = () => {
    const limit = /^[1-9]\d*$/.test(value("limit")) ? value("limit") : "20";
    const where = value("where") ? `\nwhere ${value("where")}` : "";
    text.value = value("table") ? QUERIES[inputs.what.value]({ from: sqlName(value("table")), fields: fieldsOf(value("fields")), where, limit }) : "";
    say();
  };
  const named = (name, label) => h("label", {}, label, inputs[name]);
  const form = h("form", { onsubmit: (event) => event.preventDefault(), oninput: (event) => ["from", "to", "json"].some((name) => inputs[name] === event.target) ? say() : make() },
    named("table", "Stream, group or pattern"), place, named("what", "What"), named("fields", "JSON fields"), named("where", "Only where"), named("limit", "Rows"),
    named("from", "From"), named("to", "To"), h("label", { class: "switch" }, inputs.json, "Lines of JSON"));
  text.addEventListener("input", say);
  const columns = [["stream, subject", "text"], ['"offset"', "a number; the word is one of SQL's own, so it is quoted"], ["timestamp", "with its zone"], ["key, value", "bytes: decode(value) is text, decode(value)->>'$.price' a field of JSON"], ["headers", "a map: headers['source']"], ["fields of a schema", "as columns of their own, by their names"]];
  const content = [h("h1", {}, "SQL"),
    section("Query", "", h("div", { class: "body" }, form, text, problem)),
    section("Command", "", shown, h("span", { class: "dim" }, "runs where you paste it, by DuckDB (the extra sql); it reads with your rights")),
    section("Columns", "", h("div", { class: "body" }, h("dl", {}, columns.map(([name, what]) => [h("dt", { class: "mono" }, name), h("dd", {}, what)]))))];
  make();
  let isShown = false;
  return {
    title: "SQL",
    look: () => isShown ? null : v1(`streams?limit=${PAGE}`).catch(() => null), // Names to choose from; it works without.
    draw(found) {
      if (found) place.replaceChildren(...found.streams.map((s) => h("option", { value: s.name })));
      say(); // The node's address may have come by now.
      if (isShown) return null;
      isShown = true;
      return content;
    },
  };
};
