// The replicas whose sums the page shows, and the choice between all of them and this one.

import { byID, element, formatRate, formatShare, setText, updateRows, view } from "./dom.js";

// reasonOf returns the error of a replica without its address.
export const reasonOf = (address, error) => (error.startsWith(`${address}: `) ? error.slice(address.length + 2) : error);

// createReplicas returns the section of replicas. It calls onChoose("all" or "this").
export function createReplicas(onChoose) {
  const table = byID("replicas-table");
  for (const choice of document.querySelectorAll("input[name=replicas]")) {
    choice.checked = choice.value === view.replicas;
    choice.addEventListener("change", () => onChoose(choice.value));
  }

  function createRow() {
    return element("tr", {},
      element("th", { scope: "row" }, element("span"), element("span", { class: "muted" })),
      ...["number", "number", "number wide", "number", "wide"].map((name) => element("td", { class: name })), element("td"));
  }

  function updateRow(row, { replica, number }) {
    const { address, this: isThis, error, same_as: sameAs, requests, share, state } = replica;
    setText(row.firstChild.firstChild, `${number}. ${address}`);
    setText(row.firstChild.lastChild, isThis && address !== "this replica" ? " this replica" : "");
    const { admitted, denied, failed } = requests;
    const texts = error ? ["–", "–", "–", "–", "–", `not in the sums: ${reasonOf(address, error)}`]
      : [formatRate(admitted + denied + failed), formatRate(denied), formatRate(failed), formatShare(share), state.rules.hash.slice(0, 8), stateText(state)];
    texts.forEach((text, i) => setText(row.children[i + 1], text));
    row.children[2].classList.toggle("of-denied", !error && denied > 0);
    row.children[3].classList.toggle("of-denied", !error && failed > 0);
    row.children[6].classList.toggle("of-denied", Boolean(error) && !sameAs || Boolean(state) && !isWell(state));
  }

  return {
    // update shows the replicas of an update. Without peers the section is hidden.
    update({ has_peers: hasPeers, replicas }) {
      byID("replicas").hidden = byID("replicas-link").hidden = !hasPeers;
      view.isSum = Boolean(replicas);
      if (!hasPeers) return;
      const rows = (replicas ?? []).map((replica, i) => ({ replica, number: i + 1 }));
      updateRows(table.tBodies[0], rows, { key: ({ replica }) => replica.address, create: createRow, update: updateRow });
      table.parentElement.classList.toggle("has-rows", rows.length > 0);
      setText(byID("replicas-sum"), replicas ? sumText(replicas) : "The figures are those of this replica alone.");
    },
  };
}

// sumText says what the figures of the page are the sums of.
function sumText(replicas) {
  const all = replicas.filter(({ same_as: sameAs }) => !sameAs);
  const there = all.filter(({ error }) => !error);
  const lacking = all.length - there.length;
  if (lacking === 0) return `All figures are the sums of ${all.length} ${all.length === 1 ? "replica" : "replicas"}.`;
  return `All figures are the sums of ${there.length} of ${all.length} replicas, without ${lacking === 1 ? "the one that does" : `the ${lacking} that do`} not answer.`;
}

const isWell = ({ ready, outages }) => ready && !(outages?.length > 0);

function stateText({ ready, outages }) {
  const silent = (outages ?? []).map(({ store }) => `${store} does not answer`);
  return [ready ? "ready" : "not ready", ...silent].join("; ");
}
