// The dialog that raises, bans, unsets or resets a subject.

import { byID, element, formatCount, formatUnits, ruleName, sendJSON, setText } from "./dom.js";
import { parseDescriptor } from "./descriptor.js";

const subjectOfAll = "(all)"; // The subject of a counter that all requests of a rule share.
const titles = { set: "Raise a limit", ban: "Ban a subject", reset: "Reset counters", unset: "Unset a changed limit" };
const whoKey = "ratelimit-who";
const verbs = { set: "Raise", ban: "Ban", reset: "Reset", unset: "Unset" };

// createChange returns the dialog. It calls onChanged() after each change.
export function createChange(onChanged) {
  const dialog = byID("change");
  const fields = Object.fromEntries(["limit", "for", "reason", "who"].map((name) => [name, byID(`change-${name}`)]));
  const result = byID("change-result");
  const submit = byID("change-submit");
  const dryRun = byID("change-dry-run");
  const close = byID("change-close");
  let target = null;
  let opener = null;

  const action = () => (target.isUnset ? "unset" : document.querySelector("input[name=change-action]:checked").value);

  for (const choice of document.querySelectorAll("input[name=change-action]")) choice.addEventListener("change", showAction);
  close.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => {
    const isRowGone = target.isUnset && submit.hidden || !opener?.isConnected;
    (isRowGone ? byID("limits-title") : opener).focus();
  });
  byID("change-form").addEventListener("submit", (event) => {
    event.preventDefault();
    perform(event.submitter === dryRun);
  });

  // showAction shows the fields of the chosen action.
  function showAction() {
    const name = action();
    setText(byID("change-title"), titles[name]);
    setText(submit, verbs[name]);
    fields.limit.parentElement.hidden = name !== "set";
    fields.for.parentElement.hidden = name !== "set" && name !== "ban";
    fields.reason.parentElement.hidden = fields.who.parentElement.hidden = name === "reset";
    fields.limit.disabled = name !== "set";
    fields.reason.disabled = name === "reset";
    fields.reason.required = name !== "unset";
    dryRun.hidden = name === "reset";
    result.replaceChildren();
  }

  async function perform(isDryRun) {
    const name = action();
    submit.disabled = dryRun.disabled = true;
    result.replaceChildren();
    try {
      const lines = name === "reset" ? await reset(target) : await changeLimit(target, name, fields, isDryRun);
      result.replaceChildren(...lines.map((textContent) => element("p", { textContent })));
      if (isDryRun) {
        submit.disabled = dryRun.disabled = false;
        submit.focus();
        return;
      }
      submit.hidden = dryRun.hidden = true;
      rememberWho(fields.who.value);
      setText(close, "Close");
      close.focus();
      onChanged();
    } catch (error) {
      result.replaceChildren(element("p", { class: "notice", role: "alert", textContent: error.message }));
      submit.disabled = dryRun.disabled = false;
    }
  }

  // show opens the dialog for {domain, rule, subject, isUnset}. Without a rule, the one that applies to the subject is meant.
  function show(chosen) {
    target = chosen;
    opener = document.activeElement;
    setText(byID("change-subject"), target.subject);
    setText(byID("change-rule"), `${target.domain}: ${target.rule ? ruleName(target.domain, target.rule) : "all rules"}`);
    byID("change-actions").hidden = Boolean(target.isUnset);
    byID("change-form").reset();
    fields.who.value = recallWho();
    submit.hidden = submit.disabled = dryRun.disabled = false;
    setText(close, "Cancel");
    showAction();
    dialog.showModal();
    (target.isUnset ? submit : document.querySelector("input[name=change-action]")).focus();
  }

  return {
    show,
    // button returns a button that opens the dialog.
    button(chosen) {
      const created = element("button", { type: "button", class: "small", textContent: chosen.isUnset ? "Unset" : "Change", "aria-haspopup": "dialog" });
      created.setAttribute("aria-label", `${chosen.isUnset ? "Unset the changed limit of" : "Raise, ban or reset"} ${chosen.subject}`);
      created.addEventListener("click", () => show(chosen));
      return created;
    },
  };
}

// recallWho returns who made the last change in this browser, as rememberWho got it. A browser may forbid both.
function recallWho() {
  try {
    return localStorage.getItem(whoKey) ?? "";
  } catch {
    return "";
  }
}

function rememberWho(who) {
  try {
    localStorage.setItem(whoKey, who);
  } catch { /* The next dialog has an empty field. */ }
}

// wholeSubject returns a subject as /api/limits takes it.
function wholeSubject({ subject, isUnset }) {
  if (isUnset) return subject;
  if (subject === subjectOfAll) return "*";
  if (parseDescriptor(subject).isCut) throw new Error("The text of the subject is cut, so it cannot be changed here. Write all of it in Explain.");
  return subject;
}

// changeLimit sets or unsets the limit of a subject, and returns what changed, or with isDryRun what would change.
async function changeLimit(target, action, fields, isDryRun) {
  const change = {
    action: action === "unset" ? "unset" : "set", domain: target.domain, subject: wholeSubject(target), reason: fields.reason.value,
    dry_run: isDryRun,
  };
  if (target.rule) change.rule = target.rule;
  else if (target.isUnset) change.all_rules = true;
  if (fields.who.value) change.who = fields.who.value;
  if (action !== "unset") {
    change.limit = action === "ban" ? "ban" : fields.limit.value.trim();
    if (fields.for.value) change.for = fields.for.value;
  }
  const { limits = [], warnings = [], subjects, subjects_at_least: isLeast } = await sendJSON("api/limits", change);
  return [
    ...(isDryRun ? ["Dry run, nothing is changed:"] : []),
    ...limits.map(({ rule, before, after, used, remaining }) => `${ruleName(target.domain, rule)}: ${before === after ? after : `${before} → ${after}`}` +
      (used === undefined ? "" : `, ${formatUnits(used)} used, ${formatUnits(remaining)} left`)),
    ...(subjects === undefined ? [] : [`${isLeast ? "At least " : ""}${formatCount(subjects)} ${subjects === 1 ? "subject has" : "subjects have"} a counter now.`]),
    ...warnings.map((text) => `Note: ${text}.`),
  ];
}

// reset forgets what the counters of a subject have counted. A dry run finds out whether they are those of the rule.
async function reset({ domain, rule, subject }) {
  const { entries, isCut } = parseDescriptor(subject);
  if (isCut) throw new Error("The text of the subject is cut, so its counters are not known here.");
  const change = { action: "reset", domain, descriptor: entries };
  const { counters } = await sendJSON("api/counters", { ...change, dry_run: true });
  if (rule && !counters.some((counter) => counter.rule === rule)) {
    throw new Error(`A request with only ${subject} does not reach the rule ${rule}. Write all entries of a request in Explain, and reset from there.`);
  }
  const { counters: after, before, warning } = await sendJSON("api/counters", change);
  const lines = after.map((counter, i) => `${ruleName(domain, counter.rule)}: ${formatUnits(before[i].used)} used → ${formatUnits(counter.used)}`);
  return warning ? [...lines, `Note: ${warning}.`] : lines;
}
