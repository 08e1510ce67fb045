// The current rates, and the chart of the last hour.

import { byID, element, formatRate, formatTime, getJSON, isAlarming, isOnScreen, ruleName, setText } from "./dom.js";

const historyMilliseconds = 5000; // the time between two requests of the history
const chartHeight = 220;
const shortestAxisSeconds = 300;

// allSeries are the lines of the chart. The colour of each is the CSS property --NAME.
const allSeries = [
  { name: "admitted", label: "Admitted", filled: true },
  { name: "denied", label: "Denied", filled: true },
  { name: "near", label: "Near", help: "admitted, and close to the limit" },
  { name: "shadow", label: "Shadow", help: "admitted by a rule in shadow mode, and over the limit" },
  { name: "fallback", label: "Fallback", help: "decided without the store" },
  { name: "failed", label: "Failed", filled: true, isAlarm: true, help: "answered with an error, because the store did not answer" },
  { name: "unmatched", label: "Unmatched", help: "descriptors that no rule applies to: they pass, and are no decisions" },
];

// createRates returns the section of rates and chart.
export function createRates() {
  let scope = { domain: "", rule: "" };
  let history = null;
  let requestedAt = 0;
  let request = new AbortController();
  let plot = null;

  const buttons = new Map(allSeries.map((series) => [series.name, createButton(series)]));
  byID("series").append(...buttons.values());

  function createButton(series) {
    const button = element("button", { type: "button", class: "tile", title: series.help ?? "" },
      element("span", { class: `name of-${series.name}`, textContent: series.label }),
      element("span", { class: "value", textContent: "–" }),
      element("span", { class: "muted", textContent: "" }));
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      plot?.setSeries(allSeries.indexOf(series) + 1, { show: shown });
    });
    return button;
  }

  // showRates shows rates on the buttons.
  function showRates(rates) {
    for (const { name, isAlarm } of allSeries) {
      const all = rates.admitted + rates.denied + rates.failed + (name === "unmatched" ? rates.unmatched : 0);
      const button = buttons.get(name);
      const [, value, note] = button.children;
      button.classList.toggle("alarm", Boolean(isAlarm) && isAlarming(rates[name], all));
      setText(value, `${formatRate(rates[name])}/s`);
      const of = name === "unmatched" ? " of descriptors" : "";
      setText(note, all > 0 ? `${((100 * rates[name]) / all).toFixed(1)} %${of}` : "");
    }
  }

  function showRequests({ admitted, denied, failed }) {
    const rate = formatRate(admitted + denied + failed);
    setText(byID("requests"), `Requests: ${rate}/s, ${formatRate(admitted)} admitted, ${formatRate(denied)} denied, ${formatRate(failed)} failed`);
  }

  async function loadHistory() {
    requestedAt = Date.now();
    request.abort();
    request = new AbortController();
    const { signal } = request;
    try {
      const loaded = await getJSON("api/history", scope, { signal });
      if (signal.aborted) return;
      history = loaded;
      draw();
    } catch (error) {
      if (signal.aborted) return;
      history = null;
      plot?.destroy();
      plot = null;
      setText(byID("chart-summary"), error.status === 404
        ? `There is no history of ${scopeName(scope)}. The service keeps one of the busiest rules.`
        : `The history could not be read: ${error.message}`);
    }
  }

  function draw() {
    byID("chart").hidden = allSeries.every(({ name }) => Math.max(0, ...history[name]) === 0);
    setText(byID("chart-summary"), summary(history, scopeName(scope)));
    if (byID("chart").hidden) return;
    const times = history.admitted.map((_, i) => Date.parse(history.start) / 1000 + i * history.step_seconds);
    const data = [times, ...allSeries.map(({ name }) => history[name])];
    if (plot) plot.setData(data);
    else plot = new uPlot(plotOptions(showCursor), data, byID("chart"));
  }

  // showCursor shows the rates at the cursor, or the summary if the cursor is not in the chart.
  function showCursor({ cursor }) {
    if (!history) return;
    const i = cursor.idx;
    if (i === null || i === undefined || cursor.left < 0) {
      setText(byID("chart-summary"), summary(history, scopeName(scope)));
      return;
    }
    const at = Date.parse(history.start) + i * history.step_seconds * 1000;
    const rates = allSeries.map(({ name, label }) => `${label.toLowerCase()} ${formatRate(history[name][i] ?? 0)}/s`);
    setText(byID("chart-summary"), `${formatTime(at)}: ${rates.join(", ")}`);
  }

  // timeRange returns the ends of the time axis. It is longer than a history that has just begun.
  function timeRange() {
    const seconds = Math.max(0, history.admitted.length - 1) * history.step_seconds;
    const end = Date.parse(history.start) / 1000 + seconds;
    return [end - Math.max(seconds, shortestAxisSeconds), end];
  }

  function plotOptions(onCursor) {
    const colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue(name).trim();
    const axis = { stroke: colour("--muted"), font: `12px ${colour("--sans")}`, grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    return {
      width: byID("chart").clientWidth,
      height: chartHeight,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, y: false },
      scales: { x: { range: timeRange }, y: { range: (_, low, high) => [0, Math.max(1, (high ?? 0) * 1.1)] } },
      axes: [
        { ...axis, size: 28, space: 70, incrs: [60, 120, 300, 600, 900], values: (_, times) => times.map((time) => new Date(time * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" })) },
        { ...axis, size: 56, values: (_, rates) => rates.map(formatRate) },
      ],
      series: [{}, ...allSeries.map(({ name, label, filled }) => ({
        label,
        stroke: colour(`--${name}`),
        fill: filled ? colour(`--${name}-area`) : undefined,
        width: filled ? 1.5 : 1.25,
        dash: filled ? undefined : [5, 3],
        points: { show: (_, __, first, last) => last - first < 2, size: 4 }, // A line needs two values.
        show: buttons.get(name).getAttribute("aria-pressed") === "true",
      }))],
      hooks: { setCursor: [onCursor] },
    };
  }

  // redraw makes a new plot, with the colours of now.
  function redraw() {
    plot?.destroy();
    plot = null;
    if (history) draw();
  }

  new ResizeObserver(() => {
    const width = byID("chart").clientWidth;
    if (plot && plot.width !== width) plot.setSize({ width, height: chartHeight });
  }).observe(byID("chart"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  return {
    select(chosen) {
      scope = chosen;
      setText(byID("scope"), scopeName(scope));
      byID("scope-all").hidden = scope.domain === "";
      history = null;
      redraw();
      loadHistory();
    },
    update(rates) {
      showRequests(rates.requests);
      const ofScope = findRates(rates, scope);
      if (ofScope) showRates(ofScope);
      else if (history) showRates(Object.fromEntries(allSeries.map(({ name }) => [name, history[name].at(-1) ?? 0])));
      if (Date.now() - requestedAt >= historyMilliseconds && isOnScreen(byID("rates"))) loadHistory();
    },
  };
}

function scopeName({ domain, rule }) {
  if (domain === "") return "All domains";
  return rule === "" ? domain : `${domain}: ${ruleName(domain, rule)}`;
}

// findRates returns the rates of scope, or undefined if the update does not list it, as it lists only what is busy.
function findRates(rates, { domain, rule }) {
  if (domain === "") return rates.total;
  if (rule === "") return rates.domains.find((entry) => entry.domain === domain);
  return rates.rules.find((entry) => entry.domain === domain && entry.rule === rule);
}

// summary describes the chart in words.
function summary(history, name) {
  if (history.admitted.length === 0) return `${name}: the chart starts after ${history.step_seconds} seconds.`;
  if (byID("chart").hidden) return `${name}: no decisions in the last hour.`;
  const describe = ({ name: series, label }) => {
    const list = history[series];
    const mean = list.reduce((sum, rate) => sum + rate, 0) / Math.max(1, list.length);
    return `${label.toLowerCase()} ${formatRate(mean)}/s on average and ${formatRate(Math.max(0, ...list))}/s at most`;
  };
  const described = allSeries.filter((series) => ["admitted", "denied"].includes(series.name) || series.isAlarm && Math.max(...history[series.name]) > 0);
  return `${name}, decisions of the last hour: ${described.map(describe).join("; ")}.`;
}
