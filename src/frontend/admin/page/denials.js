// The recent denials.

import { byID, element, formatCount, formatSeconds, formatTime, ruleName, setText, updateRows } from "./dom.js";

const keptDenials = 1000;
const shownDenials = 100;
const showMilliseconds = 200; // New denials appear together, so that many of them do not keep the browser busy.

// createDenials returns the section of denials. It calls onExplain(domain, subject).
export function createDenials(onExplain) {
  let denials = []; // newest first
  let process = "";
  let lastID = 0;
  let isShowPending = false;
  const filter = byID("denials-filter");
  const table = byID("denials-table");

  filter.addEventListener("input", show);
  byID("denials-form").addEventListener("submit", (event) => event.preventDefault());

  function show() {
    isShowPending = false;
    const wanted = filter.value.trim().toLowerCase();
    const matching = denials.filter(({ text }) => text.includes(wanted));
    updateRows(table.tBodies[0], matching.slice(0, shownDenials), { key: ({ key }) => key, create: createRow });
    table.parentElement.classList.toggle("has-rows", matching.length > 0);
    const shown = Math.min(matching.length, shownDenials);
    setText(byID("denials-count"), shown < denials.length ? `${formatCount(shown)} of the last ${formatCount(denials.length)}` : `${formatCount(shown)} shown`);
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
