// The state of the process, its store and its rules.

import { byID, element, formatCount, formatSeconds, formatTime, isSet, setText, updateRows } from "./dom.js";

// createState returns the section of the state.
export function createState() {
  let firstBuild;
  return {
    update(state) {
      const ready = byID("ready");
      setText(ready, state.ready ? "Ready" : "Not ready");
      ready.className = `pill ${state.ready ? "good" : "bad"}`;
      document.title = state.ready ? "ratelimit" : "Not ready · ratelimit";
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
      const list = notices(state);
      if (build !== firstBuild) list.push({ text: "The service has another version now. Reload this page.", kind: "wait" });
      updateRows(byID("problems"), list, {
        key: ({ text }) => text,
        create: ({ text, kind }) => element("p", { class: `notice ${kind}`, textContent: text }),
      });
    },
  };
}

function facts(state) {
  const now = new Date(state.now);
  const since = (instant) => formatSeconds((now - new Date(instant)) / 1000);
  const { rules } = state;
  const stores = state.components.filter((component) => isStore(component, state));
  const storeFailed = stores.some((component) => component.why);
  const answers = storeFailed ? "does not answer" : stores.some((component) => component.note) ? "unchanged" : "answers";
  return [
    {
      name: "Store", value: state.store, failed: storeFailed,
      note: isSet(state.store_since) ? `${answers} for ${since(state.store_since)}` : "",
    },
    {
      name: "Rules", value: `${formatCount(rules.rules)} in ${formatCount(rules.domains)} ${rules.domains === 1 ? "domain" : "domains"}`,
      note: rules.hash ? `${rules.hash.slice(0, 12)}, ${formatCount(rules.files)} ${rules.files === 1 ? "file" : "files"}` : "",
    },
    {
      name: "Rules loaded", value: isSet(rules.loaded_at) ? formatTime(rules.loaded_at) : "never", failed: rules.problems.length > 0,
      note: [isSet(rules.loaded_at) ? `${since(rules.loaded_at)} ago` : "", rules.problems.length > 0 ? "newer ones were refused" : ""].filter(Boolean).join(", "),
    },
    { name: "Uptime", value: since(state.started_at), note: `since ${formatTime(state.started_at)}` },
    { name: "Replicas", value: state.replicas > 0 ? formatCount(state.replicas) : "unknown", note: state.replicas > 1 ? "share the store" : "" },
    { name: "Version", value: state.version || "unknown", note: state.commit.slice(0, 12) },
  ];
}

// isStore reports whether a component is a store. There may be two Redis, and their names are longer than that of the store.
const isStore = ({ name }, { store }) => name.startsWith(store) || store.startsWith(name);

// notices returns what is wrong, and what operators should know about stores and the way of counting.
function notices({ components, rules, store }) {
  const notes = components.filter(({ name, note }) => note && (name === "counting" || isStore({ name }, { store })));
  return [
    ...components.filter(({ why }) => why).map(({ name, why }) => ({ text: `${name} is not ready: ${why}`, kind: "bad" })),
    ...rules.problems.map((problem) => ({ text: `The last reload refused this: ${problem}`, kind: "bad" })),
    ...notes.map(({ name, note }) => ({ text: `${name}: ${note}`, kind: "wait" })),
  ];
}
