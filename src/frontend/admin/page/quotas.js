// The quotas that the service divides among proxies.

import { byID, element, formatCount, formatRate, formatSeconds, ruleName, setText, updateRows } from "./dom.js";

const actionNames = { "": "none yet", units: "", allow_all: "all pass", deny_all: "none passes" };
const proxyActionNames = { ...actionNames, deny_all: "none left" };

// createQuotas returns the section of quotas. It calls onExplain(domain, bucket).
export function createQuotas(onExplain) {
  const open = new Set(); // open has the keys of the buckets whose proxies are shown.
  let shown = null; // shown are the quotas of the last update.

  const keyOf = ({ domain, bucket }) => `${domain}\n${bucket}`;

  function toggle(key) {
    if (!open.delete(key)) open.add(key);
    showBuckets(shown);
  }

  function createBucket(bucket) {
    const key = keyOf(bucket);
    const name = element("button", { type: "button", class: "link mono", textContent: bucket.bucket, title: "Show or hide the proxies" });
    name.addEventListener("click", () => toggle(key));
    const explain = element("button", { type: "button", class: "small", textContent: "Explain", "aria-label": `Explain ${bucket.bucket}` });
    explain.addEventListener("click", () => onExplain(bucket.domain, bucket.bucket));
    return element("tr", { class: "bucket" },
      element("th", { scope: "row" }, name, element("span", { class: "below muted" })),
      element("td", { class: "wide" }), element("td", { class: "number" }), element("td", { class: "number" }), element("td", { class: "number wide" }),
      element("td"), element("td", {}, explain));
  }

  function updateBucket(row, bucket) {
    const [name, rule] = row.children[0].children;
    name.setAttribute("aria-expanded", String(open.has(keyOf(bucket))));
    setText(rule, `${bucket.domain}: ${ruleName(bucket.domain, bucket.rule) || "no rule"}`);
    const others = bucket.other_proxy_count > 0 ? ` + ${formatCount(bucket.other_proxy_count)}` : "";
    showCells(row, [bucket.limits.join(", ") || "no limit", formatRate(bucket.demand_per_second), actionNames[bucket.action] || formatCount(bucket.units), formatCount(bucket.proxy_count) + others, bucketState(bucket)]);
    row.children[5].classList.toggle("of-denied", bucket.short_seconds > 0);
  }

  function createProxy() {
    return element("tr", { class: "proxy" },
      element("th", { scope: "row", class: "mono" }),
      element("td", { class: "wide" }), element("td", { class: "number" }), element("td", { class: "number" }), element("td", { class: "number wide" }),
      element("td"), element("td"));
  }

  function updateProxy(row, proxy) {
    setText(row.children[0], proxy.peer || "a proxy");
    const admitted = proxy.asked_per_second > 0 ? `${formatRate(proxy.admitted_per_second)}/s of ${formatRate(proxy.asked_per_second)}/s admitted` : "";
    const units = proxyActionNames[proxy.action] || `${formatCount(proxy.units)}, ${formatCount(proxy.in_use)} in use`;
    showCells(row, [admitted, formatRate(proxy.demand_per_second), units, "", proxyState(proxy)]);
    row.children[5].classList.toggle("of-denied", proxy.short || proxy.silent);
  }

  // rowsOf returns the rows of a bucket: its own, and those of its proxies if they are shown.
  function rowsOf(bucket) {
    const key = keyOf(bucket);
    if (!open.has(key)) return [{ key, bucket }];
    const proxies = bucket.proxies.map((proxy, i) => ({ key: `${key}\n${i} ${proxy.peer}`, proxy }));
    const more = bucket.proxy_count - bucket.proxies.length;
    return [{ key, bucket }, ...proxies, ...(more > 0 ? [{ key: `${key}\nmore`, more }] : [])];
  }

  function showBuckets(quotas) {
    updateRows(byID("quotas-table").tBodies[0], quotas.buckets.flatMap(rowsOf), {
      key: ({ key }) => key,
      create({ bucket, proxy }) {
        if (bucket) return createBucket(bucket);
        if (proxy) return createProxy();
        return element("tr", { class: "proxy" }, element("td", { colSpan: 7, class: "muted" }));
      },
      update(row, { bucket, proxy, more }) {
        if (bucket) updateBucket(row, bucket);
        else if (proxy) updateProxy(row, proxy);
        else setText(row.children[0], `and ${formatCount(more)} more, which ask for less; /api/quotas lists them`);
      },
    });
    byID("quotas-table").parentElement.classList.toggle("has-rows", quotas.buckets.length > 0);
  }

  return {
    // update shows quotas; undefined if no proxy has any.
    update(quotas) {
      byID("quotas").hidden = byID("quotas-link").hidden = !quotas;
      if (!quotas) return;
      shown = quotas;
      updateRows(byID("quotas-totals"), totals(quotas.total), {
        key: ({ name }) => name,
        create: ({ name, help }) => element("div", { title: help }, element("dt", { textContent: name }), element("dd")),
        update: (row, { value }) => setText(row.children[1], value),
      });
      showBuckets(quotas);
      const more = quotas.matching_buckets - quotas.buckets.length;
      setText(byID("quotas-more"), more > 0 ? `${formatCount(more)} more buckets, which ask for less` : "");
    },
  };
}

// showCells sets the texts of the cells after the name.
function showCells(row, texts) {
  texts.forEach((text, i) => setText(row.children[i + 1], text));
}

function totals(total) {
  return [
    { name: "Proxies", value: formatCount(total.proxies), help: "streams of proxies" },
    { name: "Buckets", value: formatCount(total.buckets), help: "" },
    { name: "Demand", value: `${formatRate(total.demand_per_second)}/s`, help: "units a second that callers ask for" },
    { name: "Assigned", value: `${formatCount(total.units)} units`, help: "of the newest assignments" },
    { name: "Short", value: total.short_buckets > 0 ? `${formatCount(total.short_buckets)} ${total.short_buckets === 1 ? "bucket" : "buckets"}` : "none", help: "buckets with a proxy that refuses more than a tenth of its requests" },
    { name: "Left by dead proxies", value: total.left_units > 0 ? `${formatCount(total.left_units)} units` : "none", help: "what proxies may still use after their streams ended, until it expires" },
  ];
}

// bucketState tells whether a bucket is short, how unfair it is, and what proxies that left may still use.
function bucketState({ short_seconds, unfairness, left_units, left_seconds }) {
  const parts = [];
  if (short_seconds > 0) parts.push(`short for ${formatSeconds(short_seconds)}`);
  if (unfairness >= 0.01) parts.push(`one proxy has ${Math.round(100 * unfairness)} % less than its share`);
  if (left_units > 0) parts.push(`up to ${formatCount(left_units)} units left by dead proxies, for ${formatSeconds(left_seconds)}`);
  return parts.join("; ") || "enough for all";
}

// proxyState tells when a proxy got its assignment and reported last.
function proxyState({ action, assigned_seconds, expires_in_seconds, reported_seconds, short, silent }) {
  const parts = [];
  if (silent) parts.push("silent");
  if (short) parts.push("refuses requests");
  if (action !== "") parts.push(`assigned ${formatSeconds(assigned_seconds)} ago`, expires_in_seconds > 0 ? `expires in ${formatSeconds(expires_in_seconds)}` : "expired");
  parts.push(`reported ${formatSeconds(reported_seconds)} ago`);
  return parts.join(", ");
}
