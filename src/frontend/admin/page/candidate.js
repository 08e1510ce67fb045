// How the candidate rules would answer.

import { byID, element, formatCount, formatTime, isSet, ruleName, setText, updateRows, view } from "./dom.js";

const resultNames = { would_deny: "would deny", would_admit: "would admit", would_be_error: "would be error" };

// createCandidate returns the section of the candidate rules. It calls onExplain(domain, subject).
export function createCandidate(onExplain) {
  function showTable(name, items, rows) {
    const table = byID(`candidate-${name}-table`);
    updateRows(table.tBodies[0], items, rows);
    table.parentElement.classList.toggle("has-rows", items.length > 0);
  }

  function showRules(candidate) {
    showTable("rules", candidate.differing_rules, {
      key: ({ domain, rule }) => `${domain}\n${rule}`,
      create: ({ domain, rule }) => element("tr", {},
        element("th", { scope: "row" },
          element("span", { textContent: ruleName(domain, rule) }),
          element("span", { class: "below muted", textContent: domain })),
        element("td", { class: "wide" }), element("td", { class: "wide" }),
        element("td", { class: "number" }), element("td", { class: "number" }), element("td", { class: "number wide" })),
      update(row, { live_limit, candidate_limit, would_deny, would_admit, would_be_error }) {
        const texts = [live_limit || "none", candidate_limit || "none", ...[would_deny, would_admit, would_be_error].map(formatCount)];
        texts.forEach((text, i) => setText(row.children[i + 1], text));
        row.children[3].classList.toggle("of-denied", would_deny > 0);
      },
    });
  }

  const subjectCell = ({ domain, rule, subject }) => element("th", { scope: "row" },
    element("span", { class: "mono", textContent: subject }),
    element("span", { class: "below muted", textContent: `${domain}: ${ruleName(domain, rule) || "limit of the request"}` }));

  function showSubjects(candidate) {
    showTable("subjects", candidate.subjects, {
      key: ({ result, domain, rule, subject }) => [result, domain, rule, subject].join("\n"),
      create: (item) => element("tr", {},
        subjectCell(item), element("td", { class: "nowrap", textContent: resultNames[item.result] }), element("td", { class: "number" })),
      update: (row, { requests }) => setText(row.children[2], formatCount(requests)),
    });
  }

  function showExamples(candidate) {
    showTable("examples", candidate.examples, {
      key: ({ result, id }) => `${result} ${id}`,
      create(item) {
        const explain = element("button", { type: "button", class: "small", textContent: "Explain", "aria-label": `Explain ${item.subject}` });
        explain.addEventListener("click", () => onExplain(item.domain, item.subject));
        return element("tr", {},
          element("td", { class: "nowrap" }, element("time", { dateTime: item.at, textContent: formatTime(item.at) })),
          subjectCell(item), element("td", { class: "nowrap", textContent: resultNames[item.result] }), element("td", {}, explain));
      },
    });
  }

  return {
    // update shows a candidate; undefined if the service has no directory for candidate rules.
    update(candidate) {
      byID("candidate").hidden = byID("candidate-link").hidden = !candidate;
      if (!candidate) return;
      const loaded = isSet(candidate.loaded_at)
        ? `${formatCount(candidate.rules)} ${candidate.rules === 1 ? "rule" : "rules"}, loaded ${formatTime(candidate.loaded_at)}, ${candidate.hash.slice(0, 12)}`
        : `none in ${candidate.directory}`;
      setText(byID("candidate-state"), view.isSum ? `this replica only: ${loaded}` : loaded);
      updateRows(byID("candidate-problems"), notices(candidate), {
        key: ({ text }) => text,
        create: ({ text, kind }) => element("p", { class: `notice ${kind}`, textContent: text }),
      });
      updateRows(byID("candidate-counts"), counts(candidate), {
        key: ({ name }) => name,
        create: ({ name }) => element("div", {}, element("dt", { textContent: name }), element("dd"), element("dd", { class: "muted" })),
        update(row, { count, note }) {
          setText(row.children[1], formatCount(count));
          setText(row.children[2], note);
        },
      });
      showRules(candidate);
      showSubjects(candidate);
      showExamples(candidate);
    },
  };
}

// counts returns the numbers of requests, with their shares of all that were compared.
function counts({ sampled_percent, requests: { same, would_deny, would_admit, would_be_error, not_judged, not_sampled } }) {
  const compared = same + would_deny + would_admit + would_be_error;
  const share = (count, digits = 2) => (count > 0 ? `${Number((100 * count / compared).toPrecision(digits))} %` : "");
  return [
    { name: "Compared", count: compared, note: "" },
    { name: "Same answer", count: same, note: share(same, 4) },
    { name: "Would deny", count: would_deny, note: share(would_deny) },
    { name: "Would admit", count: would_admit, note: share(would_admit) },
    { name: "Would be error", count: would_be_error, note: share(would_be_error) },
    { name: "Not compared", count: not_judged, note: not_judged > 0 ? "the store did not answer" : "" },
    ...(sampled_percent < 100 || not_sampled > 0
      ? [{ name: "Not in the sample", count: not_sampled, note: `${sampled_percent} % of counters are judged` }] : []),
  ];
}

// notices returns what operators should know about the candidate rules.
function notices({ problems, new_domains, removed_domains }) {
  const domains = (text, list) => (list.length > 0 ? [{ text: `${text}: ${list.join(", ")}`, kind: "wait" }] : []);
  return [
    ...problems.map((problem) => ({ text: `The last candidate was refused: ${problem}`, kind: "bad" })),
    ...domains("Domains that only the candidate has", new_domains),
    ...domains("Domains that the candidate removes, so that all their requests would be admitted", removed_domains),
  ];
}
