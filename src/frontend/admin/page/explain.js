// The form that explains a request, with the report of /explain.

import { byID, element, formatCount, formatSeconds, formatUnits, pageURL } from "./dom.js";
import { parseDescriptor } from "./descriptor.js";

// createExplain returns the section of explanations. changeButton returns a button that changes the limit of a subject.
export function createExplain(changeButton) {
  const domain = byID("explain-domain");
  const descriptors = byID("explain-descriptors");
  const hits = byID("explain-hits");
  const result = byID("explain-result");
  let request = new AbortController();

  byID("explain-form").addEventListener("submit", (event) => {
    event.preventDefault();
    explain();
  });

  async function explain() {
    request.abort();
    request = new AbortController();
    const { signal } = request;
    try {
      const parsed = descriptors.value.split("\n").filter((line) => line.trim() !== "").map(parseDescriptor);
      const body = {
        domain: domain.value,
        descriptors: parsed.map(({ entries }) => ({ entries, hitsAddend: hits.value })),
      };
      const response = await fetch(pageURL("explain", { format: "json" }), {
        method: "POST", signal, body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
      });
      const text = await response.text();
      if (!response.ok) throw new Error(text.trim() || `status ${response.status}`);
      const notes = parsed.some(({ isCut }) => isCut) ? [notice("A text that ends with … was cut. The explanation is of the cut text, which may have another counter.")] : [];
      result.replaceChildren(...notes, ...reportElements(JSON.parse(text), changeButton));
    } catch (error) {
      if (!signal.aborted) result.replaceChildren(notice(error.message));
    }
  }

  return {
    // explainSubject explains a request of the subject, and moves there.
    async explainSubject(ofDomain, subject) {
      domain.value = ofDomain;
      descriptors.value = subject;
      hits.value = "1";
      await explain();
      byID("explain").scrollIntoView();
      result.focus({ preventScroll: true });
    },
    setDomains(domains) {
      const list = byID("domains");
      const names = domains.map((entry) => entry.domain);
      if (Array.from(list.children, (option) => option.value).sort().join("\n") === names.toSorted().join("\n")) return;
      list.replaceChildren(...names.map((value) => element("option", { value })));
    },
  };
}

const notice = (text) => element("p", { class: "notice", textContent: text });

// reportElements shows a report: the decision first, then each descriptor.
function reportElements(report, changeButton) {
  const parts = [];
  if (report.now) {
    const denied = report.now.code !== "OK";
    const text = report.now.failure
      ? `The request would get an error now, and no count is known: ${report.now.failure}.`
      : report.now.shadowed
      ? "The request is over the limit and would be admitted now: the service is in shadow mode."
      : `The request would be ${denied ? "denied" : "admitted"} now.${denied ? ` ${retryText(report.now)}` : ""}`;
    parts.push(element("p", { class: `verdict ${denied ? "bad" : "good"}`, textContent: text }));
  }
  if (!report.domain_known) parts.push(notice(`No rules have the domain ${report.domain}.`));
  parts.push(...report.descriptors.map((descriptor) => descriptorElement(descriptor, (rule) => changeButton({ domain: report.domain, rule, subject: descriptor.subject }))));
  return parts;
}

// retryText tells when a denied hit passes.
function retryText({ retry_after_us, degraded }) {
  if (retry_after_us === null || retry_after_us === undefined) return "It can never be admitted.";
  if (degraded === "deny") return "The store does not answer, so the wait is unknown.";
  return `It would be admitted in ${formatSeconds(retry_after_us / 1e6)}.`;
}

const entryText = ({ key, value }) => (value === "" ? key : `${key}=${value}`);

function descriptorElement(descriptor, changeButton) {
  const parts = [element("h3", { class: "mono", textContent: descriptor.subject || "no entries" })];
  if (descriptor.outcome === "unmatched") parts.push(notice([`No rule applies: ${descriptor.why}.`, descriptor.hint].filter(Boolean).join(" ")));
  else if (descriptor.outcome === "unlimited") parts.push(element("p", { textContent: "The rule has no limit." }));
  else if (descriptor.outcome === "replaced") parts.push(element("p", { textContent: "Other rules of the request replace all rules of this descriptor." }));
  parts.push(...descriptor.charges.map((charge) => chargeElement(charge, changeButton)));
  if (descriptor.no_reset) parts.push(element("p", { textContent: `What was counted cannot be forgotten now: ${descriptor.no_reset}.` }));
  if (descriptor.reset) parts.push(element("p", {}, "To forget what was counted: ", element("code", { textContent: descriptor.reset })));
  const search = [...descriptor.steps.map(stepElement), ...triedElements(descriptor)];
  if (search.length > 0) {
    parts.push(element("details", { open: descriptor.outcome === "unmatched" },
      element("summary", { textContent: "How the rule was found" }), element("ol", { class: "steps" }, ...search)));
  }
  return element("section", { class: "descriptor" }, ...parts);
}

// chargeElement shows a limit, the state of its counter, and a button that changes the limit.
function chargeElement(charge, changeButton) {
  const facts = [];
  const add = (name, value) => value && facts.push(element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })));
  add("Limit", [charge.words, charge.algorithm].filter(Boolean).join(", "));
  add("Rule", charge.rule ? `${charge.rule} (${charge.at})` : "came with the request");
  add("Changed", charge.override);
  add("Name", charge.name);
  add("Mode", charge.canary ? "canary: is charged, and another rule answers" : charge.shadow ? "shadow: is charged and never denies" : "");
  add("If the store does not answer", charge.on_store_failure);
  add("Notify", charge.notify);
  add("Counted", charge.counting ? `against leases of this replica; when contended: ${charge.on_contention}` : charge.why_exact && `exactly, not leased: ${charge.why_exact}`);
  add("Shared", charge.shared && `all values of ${charge.shared.join(" and ")} share one counter`);
  add("Replaced", charge.replaced_by && `by ${charge.replaced_by.join(", ")}, so nothing is charged`);
  add("Counter", charge.key);
  if (charge.key) add("A request", charge.op === "refund" ? `gives ${formatUnits(charge.amount)} back` : charge.amount > 0 ? `charges ${formatUnits(charge.amount)}` : "charges nothing");
  if (charge.now) add("Now", stateText(charge.now));
  if (charge.rule && !charge.replaced_by) facts.push(element("div", {}, element("dt", { class: "unseen", textContent: "Change" }), element("dd", {}, changeButton(limitName(charge)))));
  return element("dl", { class: `charge ${charge.now?.over ? "bad" : ""}` }, ...facts);
}

// limitName returns the name of one of the limits of a rule. The first one has the name of the rule itself.
const limitName = ({ rule, name }) => (name && !rule.endsWith(`.${name}`) ? `${rule}.${name}` : rule);

function stateText(state) {
  if (state.before === undefined) return `the store does not answer, so on_store_failure decides: ${state.degraded}`;
  const share = state.share ? ` of this replica's share of ${formatUnits(state.share)}` : "";
  const held = state.held ? ` (${formatUnits(state.held)} of them held by this replica)` : "";
  const parts = [`${formatUnits(state.before)} used${held}, ${formatUnits(state.remaining)} left${share}`];
  if (state.before > 0) parts.push(`whole again in ${formatSeconds(state.reset_after_us / 1e6)}`);
  if (state.reasons?.includes("interval")) parts.push(`${state.reasons.includes("count") ? "more than is left and " : ""}too soon after the last hit`);
  if (state.cached) parts.push("from the over-limit cache");
  if (state.degraded) parts.push(`decided by ${state.degraded}, because the store did not answer`);
  return `${parts.join(", ")}. ${state.over ? retryText(state) : "A request passes."}`;
}

const outcomes = { taken: "taken", behind: "also matches", no_match: "does not match", decides: "decides", canary: "canary, is charged" };
const matchKinds = { exact: "key and value", wildcard: "wildcard", key: "key alone" };
const reasons = { not_an_address: "the value is not an address", outside_networks: "the address is in none of its networks", not_in_file: "the value is not in the file", value_cut: "compared with the start of the value" };

function stepElement(step) {
  const candidates = step.candidates.map((candidate) => element("li", { class: candidate.outcome },
    element("span", { class: "mono", textContent: entryText(candidate) }),
    ` ${[outcomes[candidate.outcome], matchKinds[candidate.how] ?? candidate.how, reasons[candidate.why], candidate.line].filter(Boolean).join(", ")} `,
    element("span", { class: "muted", textContent: candidate.at })));
  if (step.unlisted > 0) candidates.push(element("li", { textContent: `${formatCount(step.unlisted)} more descriptors do not match` }));
  if (candidates.length === 0) candidates.push(element("li", { textContent: "nothing on this level has the key" }));
  return element("li", {}, element("span", { class: "mono", textContent: step.word ? step.entry.key : entryText(step.entry) }), element("ul", {}, ...candidates));
}

// triedElements show the rules of an ordered list that the search tried.
function triedElements({ rules = [], unlisted = 0 }) {
  const tried = rules.map((rule) => {
    let text = outcomes[rule.outcome] ?? rule.outcome;
    if (rule.outcome === "no_match") text = rule.value === undefined ? `there is no ${rule.key}` : `${rule.key}=${rule.value} is not ${rule.pattern}`;
    return element("li", { class: rule.outcome }, element("span", { class: "mono", textContent: rule.rule }), `: ${text} `, element("span", { class: "muted", textContent: rule.at }));
  });
  if (unlisted > 0) tried.push(element("li", { textContent: `${formatCount(unlisted)} more rules do not match` }));
  return tried;
}
