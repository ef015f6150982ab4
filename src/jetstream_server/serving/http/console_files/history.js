"use strict";
// Rates, and charts of them.

const SAMPLES_MAX = 60;
const SAMPLES_MS = 120000; // A rate over a longer time is not that of now.

// Rates between two requests.

const seen = new Map();

function sampled(name, total, now) {
  const known = seen.get(name) || { samples: [] };
  if (total === null) return known.samples;
  const records = Number(total);
  if (now - known.at < POLL_MS / 2) return known.samples; // Too short to tell a rate.
  if (known.at !== undefined && now > known.at)
    known.samples = [...known.samples, Math.max(0, records - known.records) / ((now - known.at) / 1000)].slice(-SAMPLES_MAX);
  Object.assign(known, { at: now, records });
  seen.set(name, known);
  return known.samples;
}

/** Forget the streams that were not looked at for so long: a rate since then would be wrong, and of deleted streams they would stay. */
function forgetUnseen(now) {
  for (const [name, known] of seen) if (now - known.at > SAMPLES_MS) seen.delete(name);
}

/** The rate now; null: unknown. */
const latest = (found, samples) => end(found) === null || !samples.length ? null : samples.at(-1);

function chart(samples, width, height, kind = "") {
  const top = Math.max(...samples, 1e-9);
  const points = samples.map((value, at) =>
    `${((SAMPLES_MAX - samples.length + at) / (SAMPLES_MAX - 1) * width).toFixed(1)},${(height - value / top * (height - 2) - 1).toFixed(1)}`);
  const last = samples.length ? samples.at(-1) : null;
  const label = `records a second: ${rate(last)} now, ${rate(samples.length ? Math.max(...samples) : null)} at most`;
  const picture = svg("svg", { class: `chart ${kind}`, preserveAspectRatio: "none", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  if (points.length > 1) {
    const begin = points[0].split(",")[0];
    picture.append(svg("polygon", { class: "area", points: `${begin},${height} ${points.join(" ")} ${width},${height}` }),
      svg("polyline", { class: "line", points: points.join(" ") }));
  }
  return picture;
}

// The last hour, as the nodes keep it.

const HISTORY_MS = 15000;
const SPANS = [[3600, "1 h"], [1800, "30 min"], [600, "10 min"]];
const WIDE = 640, HIGH = 110;

/** A round number that is not less. base: 1024 for bytes. */
function roundUp(value, base) {
  const unit = base ** Math.max(0, Math.floor(Math.log(value) / Math.log(base))), power = 10 ** Math.floor(Math.log10(value / unit));
  return [1, 2, 3, 4, 6, 8, 10].map((factor) => factor * power * unit).find((each) => each >= value * 0.999999);
}

/** The sum of series with that name, at the times of the first answer: samples of nodes are as old as each other. */
function summed(histories, name) {
  const times = histories.length ? histories[0].times : [];
  const all = histories.flatMap((each) => each.series.filter((series) => series.name === name).map((series) => series.values));
  const values = times.map((_, at) => {
    const known = all.map((each) => each.at(at - times.length)).filter((value) => value !== null && value !== undefined);
    return known.length ? known.reduce((sum, value) => sum + value, 0) : null;
  });
  return { times, values };
}

/** A chart with axes; what is under the pointer is said beside its title. */
function timeChart(title, { times, values }, said, seconds) {
  const last = times.at(-1), points = times.map((time, at) => [time, values[at]]).filter(([time, value]) => value !== null && time >= last - seconds * 1000);
  if (points.length < 2) return h("figure", {}, h("figcaption", {}, title, " ", h("span", { class: "dim" }, "no two samples yet")));
  const most = Math.max(...points.map(([, value]) => value)), base = said === perSecond || said === whole ? 10 : 1024, round = most > 0 ? roundUp(most, base) : base === 10 ? 1 : 2, top = said === whole && round % 2 ? round + 1 : round, begin = points[0][0];
  const x = (time) => (time - begin) / (last - begin || 1) * WIDE, y = (value) => HIGH - value / top * HIGH;
  const line = points.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const mark = svg("line", { class: "mark", visibility: "hidden", y1: 0, y2: HIGH }), here = h("span", { class: "here mono" });
  const picture = svg("svg", { class: "chart wide", viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${title}: ${said(points.at(-1)[1])} now, ${said(most)} at most, since ${timeOfDay(begin)}` },
  ...[0, 0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: WIDE, y1: HIGH * part, y2: HIGH * part })),
  svg("polygon", { class: "area", points: `0,${HIGH} ${line} ${x(points.at(-1)[0]).toFixed(1)},${HIGH}` }), svg("polyline", { class: "line", points: line }), mark);
  const point = (event) => {
    const box = picture.getBoundingClientRect(), time = begin + (event.clientX - box.left) / box.width * (last - begin);
    const [at, value] = points.reduce((best, each) => Math.abs(each[0] - time) < Math.abs(best[0] - time) ? each : best);
    for (const end of ["x1", "x2"]) mark.setAttribute(end, x(at));
    mark.setAttribute("visibility", "visible");
    here.textContent = `${timeOfDay(at)} ${said(value)}`;
  };
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerleave", () => { mark.setAttribute("visibility", "hidden"); here.textContent = ""; });
  return h("figure", {}, h("figcaption", {}, title, " ", here),
    h("div", { class: "plot" }, h("div", { class: "axis" }, [top, top / 2, 0].map((value) => h("span", {}, said(value)))), picture),
    h("div", { class: "times" }, [begin, (begin + last) / 2, last].map((time) => h("span", {}, timeOfDay(time)))));
}

/** Charts of the last hour. asked: what the history is of. charts: [title, name of the series, said(value)]. It stays the same element; `now` is a place in its head. */
function historyOf(asked, charts) {
  const body = h("div", { class: "body charts" }, h("span", { class: "dim" }, "Loading…"));
  const span = h("select", { "aria-label": "How long", onchange: () => draw() }, SPANS.map(([value, text]) => h("option", { value }, text)));
  const now = h("span", { class: "now" });
  const element = section("The last hour", "", body, now, span, h("span", { class: "dim keys" }, "as the nodes have kept it since their start"));
  let found = null, at = -HISTORY_MS;
  const draw = () => {
    if (found) body.replaceChildren(...charts.map(([title, name, said]) => timeChart(title, summed(found.histories, name), said, Number(span.value))));
  };
  const look = async () => { // It is not waited for: the page is there without.
    if (performance.now() - at < HISTORY_MS) return;
    at = performance.now();
    try {
      found = await api(`history?${new URLSearchParams(asked)}`);
      draw();
    } catch (error) {
      if (!found) body.replaceChildren(h("span", { class: "dim" }, `unknown now: ${error.message}`));
    }
  };
  return { element, look, now };
}

const perSecond = (value) => `${rate(value)}/s`;
const bytesPerSecond = (value) => `${size(Math.round(value))}/s`;
const whole = (value) => value % 1 ? value.toFixed(1) : count(value);
