// The operator's page: connects to the events of the service and passes them to the sections.

import { byID, formatTime, setText, view } from "./dom.js";
import { listen, reconnect } from "./stream.js";
import { createReplicas } from "./replicas.js";
import { createState } from "./state.js";
import { createRates } from "./rates.js";
import { createRules } from "./rules.js";
import { createSubjects } from "./subjects.js";
import { createDenials } from "./denials.js";
import { createQuotas } from "./quotas.js";
import { createCandidate } from "./candidate.js";
import { createChange } from "./change.js";
import { createLimits } from "./limits.js";
import { createExplain } from "./explain.js";

const change = createChange(() => limits.load());
const limits = createLimits(change);
const explain = createExplain(change.button);
const state = createState();
const rates = createRates();
const replicas = createReplicas(showReplicas);
const subjects = createSubjects(explain.explainSubject, change.button);
const denials = createDenials(explain.explainSubject, change.button);
const quotas = createQuotas(explain.explainSubject);
const candidate = createCandidate(explain.explainSubject);
const rules = createRules(select, explain.explainSubject);

byID("scope-all").addEventListener("click", () => select({ domain: "", rule: "" }));

let scope = { domain: "", rule: "" };

// select shows a domain or a rule in the chart and the subjects. Empty names stand for all domains.
function select(chosen) {
  scope = chosen;
  rates.select(scope);
  subjects.select(scope);
  rules.select(scope);
}

// showReplicas shows "all" replicas or "this" one.
function showReplicas(chosen) {
  view.replicas = chosen;
  view.isSum = false;
  history.replaceState(null, "", chosen === "this" ? "?replicas=this" : location.pathname);
  denials.clear();
  select(scope);
  rules.load();
  reconnect();
}

// arrange puts denials and subjects above the rules while something is denied, unless the rules have the keyboard focus.
function arrange({ rates: { total }, top }) {
  const rules = byID("rules");
  const place = total.denied > 0 || top.denied.length > 0 ? byID("subjects") : byID("state-section");
  if (rules.previousElementSibling !== place && !rules.contains(document.activeElement)) place.after(rules);
}

let disconnectedAt = null; // null while connected

function showConnection(text, kind) {
  const connection = byID("connection");
  setText(connection, text);
  connection.className = `pill ${kind}`;
  document.body.classList.toggle("stale", kind === "bad");
}

listen({
  onEvent(name, data) {
    if (name === "denial") {
      denials.add(data);
      return;
    }
    if (name !== "update") return;
    arrange(data);
    replicas.update(data);
    state.update(data.state, data.rates.requests, data.replicas);
    denials.setProcess(data.state.started_at);
    rates.update(data.rates);
    subjects.update(data.top);
    rules.update();
    limits.update();
    quotas.update(data.quotas);
    candidate.update(data.candidate);
    explain.setDomains(data.rates.domains);
  },
  onConnected() {
    disconnectedAt = null;
    byID("disconnected").hidden = true;
    showConnection("Live", "good");
  },
  onDisconnected(reason) {
    disconnectedAt ??= new Date();
    byID("disconnected").hidden = false;
    setText(byID("disconnected"), `Disconnected since ${formatTime(disconnectedAt)}: ${reason}. What you see is older.`);
    showConnection("Disconnected, trying again", "bad");
  },
});
