// The hottest and the most-denied subjects.

import { byID, createPager, element, formatCount, formatRate, getJSON, isOnScreen, ruleName, setText, sharesText, updateRows } from "./dom.js";

const refreshMilliseconds = 2000;
const shownSubjects = 20;
const pageSize = 10;

// createSubjects returns the section of subjects. It calls onExplain(domain, subject).
// changeButton returns a button that changes the limit of a subject.
export function createSubjects(onExplain, changeButton) {
  let scope = { domain: "", rule: "" };
  let requestedAt = 0;
  let request = new AbortController();

  let top = { hot: [], denied: [] };
  const pagers = new Map(["hot", "denied"].map((kind) => [kind, createPager(kind, byID(`${kind}-table`).parentElement, pageSize, show)]));

  const window = () => document.querySelector("input[name=window]:checked").value;
  // isPushed reports whether updates have what is shown.
  const isPushed = () => scope.domain === "" && window() === "minute";

  for (const choice of document.querySelectorAll("input[name=window]")) choice.addEventListener("change", load);

  async function load() {
    requestedAt = Date.now();
    request.abort();
    request = new AbortController();
    const { signal } = request;
    const query = { window: window(), ...scope, limit: shownSubjects };
    try {
      const [hot, denied] = await Promise.all(["hot", "denied"].map((kind) => getJSON("api/top", { kind, ...query }, { signal })));
      if (signal.aborted) return;
      top = { hot, denied };
      show();
    } catch (error) {
      if (!signal.aborted) console.info(`subjects: ${error.message}`);
    }
  }

  function show() {
    for (const [kind, pager] of pagers) showList(byID(`${kind}-table`), top[kind], pager);
  }

  function showList(table, subjects, pager) {
    updateRows(table.tBodies[0], pager.pageOf(subjects), {
      key: ({ domain, rule, subject }) => [domain, rule, subject].join("\n"),
      create({ domain, rule, subject }) {
        const explain = element("button", { type: "button", class: "small", textContent: "Explain", "aria-label": `Explain ${subject}` });
        explain.addEventListener("click", () => onExplain(domain, subject));
        return element("tr", {},
          element("th", { scope: "row" },
            element("span", { class: "mono", textContent: subject }),
            element("span", { class: "below muted" })),
          element("td", { class: "number" }), element("td", { class: "number wide" }), element("td", {}, explain, ...(rule ? [changeButton({ domain, rule, subject })] : [])));
      },
      update(row, { domain, rule, hits, per_second, shares }) {
        const name = `${domain}: ${ruleName(domain, rule) || "limit of the request"}`;
        setText(row.firstChild.lastChild, shares ? `${name}, shares ${sharesText(shares)} %` : name);
        setText(row.children[1], formatCount(hits));
        setText(row.children[2], formatRate(per_second));
      },
    });
    table.parentElement.classList.toggle("has-rows", subjects.length > 0);
  }

  return {
    select(chosen) {
      scope = chosen;
      load();
    },
    update(pushed) {
      if (isPushed()) {
        request.abort();
        top = pushed;
        show();
      } else if (Date.now() - requestedAt >= refreshMilliseconds && isOnScreen(byID("subjects"))) {
        load();
      }
    },
  };
}
