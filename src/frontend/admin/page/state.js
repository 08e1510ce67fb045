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
      const list = problems(state);
      if (build !== firstBuild) list.push("The service has another version now. Reload this page.");
      updateRows(byID("problems"), list, {
        key: (text) => text,
        create: (text) => element("p", { class: "notice", textContent: text }),
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
  const storeFailed = stores.some((component) => component.why);
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
    { name: "Replicas", value: state.replicas > 0 ? formatCount(state.replicas) : "unknown", note: state.replicas > 1 ? "share the store" : "" },
    { name: "Version", value: state.version || "unknown", note: state.commit.slice(0, 12) },
  ];
}

// isStore reports whether a component is a store. There may be two Redis, and their names are longer than that of the store.
const isStore = ({ name }, { store }) => name.startsWith(store) || store.startsWith(name);

// problems returns a text for each thing that is wrong.
function problems({ components, rules }) {
  return [
    ...components.filter(({ why }) => why).map(({ name, why }) => `${name} is not ready: ${why}`),
    ...rules.problems.map((problem) => `The last reload refused this: ${problem}`),
  ];
}

// notes returns the components whose notes concern stores and the way of counting. Notes have times that change each
// second, so a screen reader does not announce them.
function notes(state) {
  return state.components.filter((component) => component.note && (component.name === "counting" || isStore(component, state)));
}
