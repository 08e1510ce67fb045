// The state of the process, its store and its rules.

import { byID, element, formatCount, formatPercent, formatSeconds, formatTime, isAlarming, isSet, setText, updateRows } from "./dom.js";
import { reasonOf } from "./replicas.js";

// createState returns the section of the state.
export function createState() {
  let firstBuild;
  return {
    // update shows the state of this replica, and what is wrong with it, or with any of replicas if these are known.
    update(state, requests, replicas) {
      setText(byID("state-title"), replicas ? "State of this replica" : "State");
      const all = replicas ?? [{ address: "", requests, state }];
      const [text, kind] = worstBadge(all);
      const ready = byID("ready");
      setText(ready, text);
      ready.className = `pill ${kind}`;
      document.title = kind === "good" ? "ratelimit" : `${text} · ratelimit`;
      const build = `${state.version} ${state.commit}`;
      firstBuild ??= build;
      updateRows(byID("state"), facts(state), {
        key: (fact) => fact.name,
        create: (fact) => element("div", {}, element("dt", { textContent: fact.name }), element("dd"), element("dd", { class: "muted" })),
        update(row, fact) {
          setText(row.children[1], fact.value);
          setText(row.children[2], fact.note);
          row.classList.toggle("failed", Boolean(fact.failed));
        },
      });
      const list = problems(all);
      if (build !== firstBuild) list.push(problem("The service has another version now. Reload this page."));
      updateRows(byID("problems"), list, {
        key: ({ key }) => key,
        create: () => element("p"),
        update(row, { text, kind }) {
          row.className = `notice ${kind}`;
          setText(row, text);
        },
      });
      updateRows(byID("notes"), notes(state), {
        key: ({ name }) => name,
        create: () => element("p", { class: "notice wait" }),
        update: (row, { name, note }) => setText(row, `${name}: ${note}`),
      });
    },
  };
}

function facts(state) {
  const now = new Date(state.now);
  const since = (instant) => formatSeconds((now - new Date(instant)) / 1000);
  const { rules } = state;
  const stores = state.components.filter((component) => isStore(component, state));
  const storeFailed = outages(state).length > 0 || stores.some((component) => component.why);
  const storeState = storeFailed ? "not answering" : stores.some((component) => component.note) ? "in this state" : "answering";
  return [
    {
      name: "Store", value: state.store, failed: storeFailed,
      note: isSet(state.store_since) ? `${storeState} for ${since(state.store_since)}` : "",
    },
    {
      name: "Rules", value: `${formatCount(rules.rules)} in ${formatCount(rules.domains)} ${rules.domains === 1 ? "domain" : "domains"}`,
      note: rules.hash ? `${rules.hash.slice(0, 12)}, ${formatCount(rules.files)} ${rules.files === 1 ? "file" : "files"}` : "",
    },
    {
      name: "Rules loaded", value: isSet(rules.loaded_at) ? formatTime(rules.loaded_at) : "never", failed: rules.problems.length > 0,
      note: [isSet(rules.loaded_at) ? `${since(rules.loaded_at)} ago` : "", rules.problems.length > 0 ? "newer ones were refused" : ""].filter(Boolean).join(", "),
    },
    ...state.components.filter(({ name }) => name.startsWith("rules from ")).map(({ name, note, why }) => ({
      name: name.replace("rules", "Rules"), value: why || note, failed: Boolean(why),
    })),
    { name: "Uptime", value: since(state.started_at), note: `since ${formatTime(state.started_at)}` },
    // The replicas are counted only if REPLICAS or on_store_failure: local needs it.
    ...(state.replicas > 0 ? [{ name: "Replicas", value: formatCount(state.replicas), note: state.replicas > 1 ? "share the store" : "" }] : []),
    { name: "Version", value: state.version || "unknown", note: state.commit.slice(0, 12) },
  ];
}

// isStore reports whether a component is a store. There may be two Redis, and their names are longer than that of the store.
const isStore = ({ name }, { store }) => name.startsWith(store) || store.startsWith(name);

const outages = ({ outages: list }) => list ?? [];

const allRequests = ({ admitted, denied, failed }) => admitted + denied + failed;

// badge returns the state in a few words, and its kind. An outage is bad if it makes requests fail or be denied.
function badge(state, requests) {
  const [outage] = outages(state);
  if (!state.ready) return ["Not ready", "bad"];
  if (!outage) return isAlarming(requests.failed, allRequests(requests)) ? ["Requests fail", "bad"] : ["Ready", "good"];
  const isBad = state.on_store_failure.some((mode) => mode === "error" || mode === "deny");
  return [`${upperFirst(outage.store)} does not answer`, isBad ? "bad" : "wait"];
}

// worstBadge returns the badge of the replica that is worst, with its address if there are several.
function worstBadge(all) {
  const kinds = ["good", "wait", "bad"];
  const badges = all.map(({ address, error, same_as: sameAs, state, requests }) => {
    if (sameAs) return ["Ready", "good"];
    if (error) return [`${address} does not answer`, "wait"];
    const [text, kind] = badge(state, requests);
    return [kind === "good" || all.length === 1 ? text : `${address}: ${text.charAt(0).toLowerCase()}${text.slice(1)}`, kind];
  });
  return badges.reduce((worst, one) => (kinds.indexOf(one[1]) > kinds.indexOf(worst[1]) ? one : worst));
}

const upperFirst = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const problem = (text, key = text, kind = "bad") => ({ key, text, kind });

const mostProblems = 8;

// problems returns a text for each thing that is wrong with a replica, with its address if there are several.
function problems(all) {
  const list = all.flatMap(({ address, error, same_as: sameAs, state, requests }) => {
    if (sameAs) return [];
    if (error) return [problem(`${address} is not in the sums: ${reasonOf(address, error)}`, address, "wait")];
    return problemsOf(state, requests).map(({ key, text, kind }) => (address ? problem(`${address}: ${text}`, `${address} ${key}`, kind) : problem(text, key, kind)));
  });
  const hashes = new Set(all.map(({ state }) => state?.rules.hash).filter(Boolean));
  if (hashes.size > 1) list.push(problem("The replicas have different rules, as they do during a change. The table of replicas shows which.", "rules", "wait"));
  const more = list.length - mostProblems;
  return more > 1 ? [...list.slice(0, mostProblems), problem(`and ${formatCount(more)} more problems`, "more")] : list;
}

function problemsOf(state, requests) {
  const outage = outageText(state, requests);
  return [
    ...(outage ? [problem(outage, "outage", badge(state, requests)[1] === "bad" ? "bad" : "wait")] : []),
    ...(state.components ?? []).filter(({ why }) => why).map(({ name, why }) => problem(`${name} is not ready: ${why}`)),
    ...(state.rules.problems ?? []).map((text) => problem(`The last reload refused this: ${text}`)),
  ];
}

// outageText says which stores do not answer since when, and what requests get meanwhile, as ratelimit top does. It is
// empty while all stores answer and no request fails.
function outageText(state, requests) {
  const silent = outages(state).map(({ store, silent_servers: count, servers, since }) => {
    const isPart = count < servers;
    const who = isPart ? `${count} ${count === 1 ? "server" : "servers"} of ${servers} of ${store}` : store;
    return `${who} ${isPart && count > 1 ? "have" : "has"} not answered since ${isSet(since) ? formatTime(since) : "this process started"}`;
  });
  if (silent.length === 0 && requests.failed === 0) return "";
  if (silent.length === 0) silent.push("Some calls of the store get no answer");
  return `${upperFirst([...silent, outageAnswers(requests)].join("; "))} (on_store_failure: ${state.on_store_failure.join(", ")})`;
}

function outageAnswers(requests) {
  const { fallback, failed } = requests;
  const all = allRequests(requests);
  if (all === 0) return "no requests in the last 10 s";
  const parts = [];
  if (failed > 0) parts.push(`${formatPercent(failed, all)} of requests get an error`);
  if (fallback > 0) parts.push(`${formatPercent(fallback, all)} of requests are decided without the store`);
  return parts.join(", ") || "no request of the last 10 s needed it";
}

// notes returns the components whose notes concern stores and the way of counting, unless an outage says it. Notes have
// times that change each second, so a screen reader does not announce them.
function notes(state) {
  if (outages(state).length > 0) return [];
  return state.components.filter((component) => component.note && (component.name === "counting" || isStore(component, state)));
}
