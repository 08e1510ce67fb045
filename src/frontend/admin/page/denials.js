// The recent denials.

import { byID, createPager, element, formatCount, formatSeconds, formatTime, ruleName, setText, updateRows, view } from "./dom.js";

const keptDenials = 1000;
const pageSize = 10;
const showMilliseconds = 200; // New denials appear together, so that many of them do not keep the browser busy.

// createDenials returns the section of denials. It calls onExplain(domain, subject).
// changeButton returns a button that changes the limit of a subject.
export function createDenials(onExplain, changeButton) {
  let denials = []; // newest first
  let process = "";
  const lastIDs = new Map(); // of each replica; the address of the one that serves the page is ""
  let isShowPending = false;
  let held = null; // the denials that are paged through; null on the first page, which shows new ones as they come
  const filter = byID("denials-filter");
  const table = byID("denials-table");
  const pager = createPager("denials", table.parentElement, pageSize, () => {
    held = pager.offset > 0 ? held ?? denials.slice() : null;
    show();
  });

  filter.addEventListener("input", () => {
    held = null;
    pager.reset();
    show();
  });
  byID("denials-form").addEventListener("submit", (event) => event.preventDefault());

  function show() {
    isShowPending = false;
    const wanted = filter.value.trim().toLowerCase();
    const matching = (held ?? denials).filter(({ text }) => text.includes(wanted));
    updateRows(table.tBodies[0], pager.pageOf(matching), { key: ({ key }) => key, create: createRow });
    table.parentElement.classList.toggle("has-rows", matching.length > 0);
    byID("denials-form").hidden = denials.length === 0;
    setText(byID("denials-empty"), denials.length > 0 ? "No denial matches." : "No denials.");
    setText(byID("denials-count"), held ? "New ones wait on the first page."
      : matching.length < denials.length ? `${formatCount(matching.length)} of the last ${formatCount(denials.length)}` : `the last ${formatCount(matching.length)}`);
  }

  function createRow({ denial }) {
    const { at, protocol, domain, rule, subject, counter, retry_after_seconds, reason, skipped, replica } = denial;
    const explain = element("button", { type: "button", class: "small", textContent: "Explain", "aria-label": `Explain ${subject}` });
    explain.addEventListener("click", () => onExplain(domain, subject));
    const wait = retry_after_seconds < 0 ? "never" : formatSeconds(retry_after_seconds);
    const time = element("time", { dateTime: at, textContent: formatTime(at) });
    return element("tr", {},
      element("td", { class: "nowrap" }, time, ...(skipped > 0 ? [element("span", { class: "below muted", textContent: `+${formatCount(skipped)}`, title: `${formatCount(skipped)} earlier denials were not sampled` })] : [])),
      element("th", { scope: "row" },
        element("span", { class: "mono", textContent: subject }),
        element("span", { class: "below muted", textContent: `${domain}: ${ruleName(domain, rule) || "limit of the request"}${view.isSum ? `, by ${replica || "this replica"}` : ""}` },
          element("span", { class: "narrow", textContent: `, retry after: ${wait}` })),
        ...(reason ? [element("span", { class: "below bad", textContent: reason })] : [])),
      element("td", { class: "wide mono", textContent: counter }),
      element("td", { class: "wide", textContent: protocol }),
      element("td", { class: "number wide", textContent: wait }),
      element("td", {}, explain, ...(rule ? [changeButton({ domain, rule, subject })] : [])));
  }

  return {
    // setProcess tells when the process that serves the page started. Another one counts its denials anew.
    setProcess(startedAt) {
      if (process !== startedAt) lastIDs.delete("");
      process = startedAt;
    },
    // clear forgets all denials.
    clear() {
      denials = [];
      held = null;
      lastIDs.clear();
      pager.reset();
      show();
    },
    add(denial) {
      const { id, at, protocol, domain, rule, subject, counter, reason = "", replica = "" } = denial;
      if (id <= lastIDs.get(replica)) return; // Each connection begins with the newest denials.
      lastIDs.set(replica, id);
      const time = Date.parse(at);
      const place = denials.findIndex((other) => other.time <= time); // Those of other replicas come late.
      denials.splice(place < 0 ? denials.length : place, 0, {
        key: `${replica || process} ${id}`, time, denial, text: [protocol, domain, rule, subject, counter, reason, replica].join("\n").toLowerCase(),
      });
      denials.length = Math.min(denials.length, keptDenials);
      if (!isShowPending) {
        isShowPending = true;
        setTimeout(show, showMilliseconds);
      }
    },
  };
}
