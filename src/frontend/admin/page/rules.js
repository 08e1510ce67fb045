// The table of rules. The service searches and pages, so that 10,000 rules need no more of the browser than 100.

import { byID, createPager, element, formatCount, formatRate, formatTime, getJSON, ruleName, setText, sharesText, updateRows, view } from "./dom.js";

const pageSize = 25;
const refreshMilliseconds = 2000;
const typingMilliseconds = 150;
const shownRates = ["admitted", "denied", "near", "shadow", "fallback", "failed"];
const narrowRates = ["admitted", "denied", "failed"]; // also shown on a phone

// createRules returns the section of rules. It calls onSelect({domain, rule}) for a chosen row, and onExplain(domain,
// subject) for traffic without a rule.
export function createRules(onSelect, onExplain) {
  let rates = null;
  let scope = { domain: "", rule: "" };
  let requestedAt = 0;
  let request = new AbortController();
  let typing;

  const search = byID("rules-search");
  const order = byID("rules-order");
  const table = byID("rules-table");
  const pager = createPager("rules", table.parentElement, pageSize, load);

  search.addEventListener("input", () => {
    pager.reset();
    clearTimeout(typing);
    typing = setTimeout(load, typingMilliseconds);
  });
  byID("rules-form").addEventListener("submit", (event) => event.preventDefault());
  order.addEventListener("change", () => {
    pager.reset();
    load();
  });

  async function load() {
    requestedAt = Date.now();
    request.abort();
    request = new AbortController();
    const { signal } = request;
    try {
      const query = { search: search.value.trim(), order: order.value, offset: pager.offset, limit: pageSize };
      const loaded = await getJSON("api/rates", query, { signal });
      if (signal.aborted) return;
      const isFirst = rates === null;
      rates = loaded;
      if (rates.rules.length === 0 && pager.offset > 0) { // A reload removed rules.
        pager.reset();
        load();
      } else if (isFirst && rates.matching_rules > pageSize) { // A tree that needs several pages hides what is busy.
        order.value = "busiest";
        load();
      } else {
        show();
      }
    } catch (error) {
      if (!signal.aborted) pager.show(0, `The rules could not be read: ${error.message}`);
    }
  }

  function show() {
    if (!rates) return;
    const wanted = search.value.trim().toLowerCase();
    const unmatched = rates.unmatched?.filter(({ domain }) => domain.toLowerCase().includes(wanted)) ?? [];
    const rows = withUnmatched(order.value === "tree" ? treeRows(rates) : flatRows(rates), unmatched, pager.offset === 0);
    updateRows(table.tBodies[0], rows, {
      key: (row) => [row.domain, row.rule, row.unmatched?.keys, row.unmatched?.descriptor].join("\n"),
      create: (row) => (row.unmatched ? createUnmatchedRow(row) : createRow(row)),
      update: updateRow,
    });
    table.parentElement.classList.toggle("has-rows", rows.length > 0);
    table.classList.toggle("sums", view.isSum);
    pager.show(rates.matching_rules, rangeText());
  }

  function rangeText() {
    const { matching_rules: count, rules } = rates;
    if (count === 0) return search.value.trim() ? "No rule matches." : "There are no rules.";
    const range = `${formatCount(pager.offset + 1)}–${formatCount(pager.offset + rules.length)} of ${formatCount(count)} rules`;
    return count > pageSize ? `${range}, ${order.value === "tree" ? "by name" : "the busiest first"}` : range;
  }

  function createRow({ domain, rule }) {
    const name = element("button", { type: "button", class: "link" });
    name.addEventListener("click", () => onSelect({ domain, rule }));
    return element("tr", {},
      element("th", { scope: "row" }, name, element("span", { class: "below muted narrow" })),
      element("td", { class: "wide" }),
      ...shownRates.map((rate) => element("td", { class: narrowRates.includes(rate) ? "number" : "number wide" })),
      element("td", { class: "number wide shares" }));
  }

  function createUnmatchedRow({ domain, unmatched: { unknown_domain, descriptor } }) {
    const explain = element("button", { type: "button", class: "small", textContent: "Explain", "aria-label": `Explain ${descriptor}` });
    explain.addEventListener("click", () => onExplain(domain, descriptor));
    return element("tr", { class: "unmatched" },
      element("th", { scope: "row", colSpan: table.tHead.rows[0].cells.length },
        element("span", { class: "of-unmatched", textContent: unknown_domain ? "Unknown domain " : "Unmatched " }),
        element("span", { class: "mono", textContent: unknown_domain ? domain : descriptor }), " ", explain,
        element("span", { class: "below muted" })));
  }

  function updateRow(row, { domain, rule, depth, label, limit, values, unmatched }) {
    if (unmatched) {
      row.firstChild.style.setProperty("--depth", depth);
      setText(row.firstChild.lastChild, unmatchedText(unmatched));
      return;
    }
    row.classList.toggle("domain", rule === "");
    const isChosen = scope.domain === domain && scope.rule === rule;
    row.classList.toggle("chosen", isChosen);
    const [heading, limitCell, ...cells] = row.children;
    heading.firstChild.setAttribute("aria-pressed", String(isChosen));
    heading.style.setProperty("--depth", depth);
    setText(heading.firstChild, label);
    setText(limitCell, limit);
    const shares = sharesText(values?.shares);
    setText(cells.at(-1), shares);
    setText(heading.lastChild, shares && `shares ${shares} %`);
    shownRates.forEach((rate, i) => {
      const value = values?.[rate] ?? 0;
      setText(cells[i], values ? formatRate(value) : "");
      cells[i].classList.toggle("zero", value === 0);
      cells[i].classList.toggle("of-denied", (rate === "denied" || rate === "failed") && value > 0);
    });
  }

  load();
  return {
    load,
    select(chosen) {
      scope = chosen;
      show();
    },
    update() {
      if (Date.now() - requestedAt >= refreshMilliseconds) load();
    },
  };
}

// limitText returns the limit of a rule with its holds: "4 at a time (3 open, 1 expired, 900 charged)", or its leases:
// "1000 per minute (99.9 % by lease, 530 held, 1 of 3 counters contended)".
function limitText({ limit, holds, leases, ...rates }) {
  if (leases) {
    const all = rates.admitted + rates.denied + rates.failed;
    const local = Math.max(0, all - (rates.lease_misses ?? 0) - rates.fallback - rates.failed);
    const share = all > 0 ? `${((100 * local) / all).toFixed(1)} % by lease, ` : "";
    return `${limit} (${share}${formatCount(leases.held)} held, ${formatCount(leases.contended)} of ${formatCount(leases.counters)} counters contended)`;
  }
  return holds ? `${limit} (${formatCount(holds.open)} open, ${formatCount(holds.expired)} expired, ${formatCount(holds.charged)} charged)` : limit;
}

// unmatchedText tells why no rule applies, and how often.
function unmatchedText({ why, did_you_mean, descriptors, first_at, last_at }) {
  const guess = did_you_mean ? `; did you mean ${did_you_mean}?` : ".";
  return `${why[0].toUpperCase()}${why.slice(1)}${guess} ${formatCount(descriptors)} passed since ${formatTime(first_at)}, the last at ${formatTime(last_at)}.`;
}

// withUnmatched returns rows with traffic without a rule: below its domain. Where that has no row, it comes first, on
// the first page.
function withUnmatched(rows, unmatched, isFirstPage) {
  const rowsOf = (list, depth) => list.map((traffic) => ({ domain: traffic.domain, rule: "", depth, unmatched: traffic }));
  const ofDomain = Map.groupBy(unmatched, ({ domain }) => domain);
  const below = rows.flatMap((row) => {
    if (row.rule !== "" || !ofDomain.has(row.domain)) return [row];
    const added = rowsOf(ofDomain.get(row.domain), 1);
    ofDomain.delete(row.domain);
    return [row, ...added];
  });
  return isFirstPage ? [...rowsOf([...ofDomain.values()].flat(), 0), ...below] : below;
}

// flatRows returns a row for each rule, in the order of the service.
function flatRows(rates) {
  return rates.rules.map((rule) => ({
    domain: rule.domain, rule: rule.rule, depth: 0, label: rule.rule || `${rule.domain}: limits that came with requests`, limit: limitText(rule), values: rule,
  }));
}

// treeRows returns the rules, which the service sorted by name, each below the rule that is the begin of its name and
// below its domain.
function treeRows(rates) {
  const domains = new Map(rates.domains.map((domain) => [domain.domain, domain]));
  const rows = [];
  let domain = null;
  let above = []; // above are the names of the rules that the last row is below.
  for (const rule of rates.rules) {
    if (rule.domain !== domain) {
      domain = rule.domain;
      above = [];
      rows.push({ domain, rule: "", depth: 0, label: domain, limit: "", values: domains.get(domain) });
    }
    while (above.length > 0 && !rule.rule.startsWith(above.at(-1) + ".")) above.pop();
    const label = above.length > 0 ? rule.rule.slice(above.at(-1).length + 1) : ruleName(domain, rule.rule);
    rows.push({ domain, rule: rule.rule, depth: above.length + 1, label: label || "limits that came with requests", limit: limitText(rule), values: rule });
    above.push(rule.rule);
  }
  return rows;
}
