// The limits that were changed at run time, and the history of changes.

import { byID, createPager, element, fetchJSON, formatCount, formatSeconds, formatTime, isOnScreen, pageURL, ruleName, setText, updateRows } from "./dom.js";

const refreshMilliseconds = 2000;
const loadedLimits = 1000; // further ones are counted
const loadedRecords = 100;
const pageSize = 10;

// createLimits returns the section of changed limits. dialog is that of createChange.
export function createLimits(dialog) {
  let requestedAt = 0;
  let isLoading = false;
  let list = { count: 0, limits: [], history: [] };
  const history = byID("limits-history");
  const tables = { limits: byID("limits-table"), history: byID("history-table") };
  const pagers = { limits: createPager("limits", tables.limits.parentElement, pageSize, show), history: createPager("history", tables.history.parentElement, pageSize, show) };

  history.addEventListener("toggle", () => history.open && load());

  async function load() {
    requestedAt = Date.now();
    if (isLoading) return;
    isLoading = true;
    try {
      const of = (parameters) => fetchJSON(pageURL("api/limits", parameters));
      const loaded = await of({ limit: loadedLimits });
      if (history.open) loaded.history = (await of({ limit: loadedRecords, history: true })).history ?? [];
      list = { ...list, ...loaded };
      byID("limits").hidden = byID("limits-link").hidden = false;
      setText(byID("limits-problem"), "");
      show();
    } catch (error) {
      if (error.status !== 404) setText(byID("limits-problem"), error.message);
    } finally {
      isLoading = false;
    }
  }

  function show() {
    const { count, limits } = list;
    showTable("limits", limits, ({ domain, rule, subject, limit, who, since }) => [domain, rule, subject, limit, who, since], limitRow, updateLimit);
    showTable("history", list.history, ({ at, domain, rule, subject }) => [at, domain, rule, subject], historyRow);
    setText(byID("limits-count"), count > limits.length ? `${formatCount(count)}, of which ${formatCount(limits.length)} are listed; \`ratelimit limit list\` shows all` : "");
  }

  function showTable(name, items, key, create, update) {
    updateRows(tables[name].tBodies[0], pagers[name].pageOf(items), { key: (item) => key(item).join("\n"), create, update });
    tables[name].parentElement.classList.toggle("has-rows", items.length > 0);
  }

  function limitRow({ domain, rule, subject, limit, who, reason }) {
    return element("tr", {},
      subjectCell(domain, rule, subject, element("span", { class: "narrow", textContent: `, ${who}: ${reason}` })),
      element("td", { textContent: limit }),
      element("td", { class: "nowrap" }),
      element("td", { class: "wide", textContent: who }),
      element("td", { class: "wide", textContent: reason }),
      element("td", {}, dialog.button({ domain, rule, subject, isUnset: true })));
  }

  const updateLimit = (row, { until }) => {
    setText(row.children[2], until ? formatSeconds((Date.parse(until) - Date.now()) / 1000) : "no end");
    if (until) row.children[2].title = formatTime(until);
  };

  function historyRow({ at, action, domain, rule, subject, limit, before, who, reason }) {
    const after = action === "unset" ? "rule" : limit;
    return element("tr", {},
      element("td", { class: "nowrap" }, element("time", { dateTime: at, textContent: formatTime(at) })),
      subjectCell(domain, rule, subject, element("span", { class: "narrow", textContent: `, ${who}: ${reason}` })),
      element("td", { textContent: `${before?.limit ?? "rule"} → ${after}` }),
      element("td", { class: "wide", textContent: who }),
      element("td", { class: "wide", textContent: reason }));
  }

  return {
    load,
    // update loads the limits again if they are on the screen, and once in any case.
    update() {
      const isDue = requestedAt === 0 || Date.now() - requestedAt >= refreshMilliseconds && isOnScreen(byID("limits"));
      if (isDue) load();
    },
  };
}

function subjectCell(domain, rule, subject, ...more) {
  return element("th", { scope: "row" },
    element("span", { class: "mono", textContent: subject }),
    element("span", { class: "below muted", textContent: `${domain}: ${rule ? ruleName(domain, rule) : "all rules"}` }, ...more));
}
