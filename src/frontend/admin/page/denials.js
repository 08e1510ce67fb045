// The recent denials.

import { byID, createPager, element, formatCount, formatSeconds, formatTime, ruleName, setText, updateRows } from "./dom.js";

const keptDenials = 1000;
const pageSize = 10;
const showMilliseconds = 200; // New denials appear together, so that many of them do not keep the browser busy.

// createDenials returns the section of denials. It calls onExplain(domain, subject).
export function createDenials(onExplain) {
  let denials = []; // newest first
  let process = "";
  let lastID = 0;
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
    const { at, protocol, domain, rule, subject, counter, retry_after_seconds, skipped } = denial;
    const explain = element("button", { type: "button", class: "small", textContent: "Explain", "aria-label": `Explain ${subject}` });
    explain.addEventListener("click", () => onExplain(domain, subject));
    const wait = retry_after_seconds < 0 ? "never" : formatSeconds(retry_after_seconds);
    const time = element("time", { dateTime: at, textContent: formatTime(at) });
    return element("tr", {},
      element("td", { class: "nowrap" }, time, ...(skipped > 0 ? [element("span", { class: "below muted", textContent: `+${formatCount(skipped)}`, title: `${formatCount(skipped)} earlier denials were not sampled` })] : [])),
      element("th", { scope: "row" },
        element("span", { class: "mono", textContent: subject }),
        element("span", { class: "below muted", textContent: `${domain}: ${ruleName(domain, rule) || "limit of the request"}` },
          element("span", { class: "narrow", textContent: `, retry after: ${wait}` }))),
      element("td", { class: "wide mono", textContent: counter }),
      element("td", { class: "wide", textContent: protocol }),
      element("td", { class: "number wide", textContent: wait }),
      element("td", {}, explain));
  }

  return {
    // setProcess tells when the process started. A new process counts its denials from 1.
    setProcess(startedAt) {
      if (process !== startedAt) lastID = 0;
      process = startedAt;
    },
    add(denial) {
      if (denial.id <= lastID) return; // Each connection begins with the newest denials.
      lastID = denial.id;
      const { protocol, domain, rule, subject, counter } = denial;
      denials.unshift({ key: `${process} ${denial.id}`, denial, text: [protocol, domain, rule, subject, counter].join("\n").toLowerCase() });
      denials.length = Math.min(denials.length, keptDenials);
      if (!isShowPending) {
        isShowPending = true;
        setTimeout(show, showMilliseconds);
      }
    },
  };
}
