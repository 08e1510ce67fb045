// Functions that create and update elements. All text becomes text nodes, never HTML, because callers
// of the service choose the names of subjects.

// byID returns the element of the page with this id.
export const byID = (id) => document.getElementById(id);

// element creates an element. A property that the element does not have becomes an attribute.
export function element(tag, properties = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") created.className = value;
    else if (name in created) created[name] = value;
    else created.setAttribute(name, value);
  }
  created.append(...children);
  return created;
}

// setText sets the text of target if it differs, so that screen readers and selections are not disturbed.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// updateRows makes the children of body show items, in order. It keeps the row of an item whose key was
// shown before, and keyboard focus in it.
export function updateRows(body, items, { key, create, update }) {
  const old = new Map(Array.from(body.children, (row) => [row.dataset.key, row]));
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  let next = body.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let row = old.get(name);
    if (row) {
      old.delete(name);
    } else {
      row = create(item);
      row.dataset.key = name;
    }
    update?.(row, item);
    if (row === next) next = next.nextElementSibling;
    else body.insertBefore(row, next);
  }
  for (const row of old.values()) row.remove();
  if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
}

// createPager puts buttons below a card that turn the pages of its table, with size items each. It calls onTurn after a
// click. The ids of its elements begin with name.
export function createPager(name, card, size, onTurn) {
  let offset = 0;
  const button = (id, text, by) => {
    const created = element("button", { type: "button", id: `${name}-${id}`, textContent: text });
    created.addEventListener("click", () => {
      offset = Math.max(0, offset + by);
      onTurn();
    });
    return created;
  };
  const range = element("p", { id: `${name}-range`, role: "status" });
  const previous = button("previous", "Previous", -size);
  const next = button("next", "Next", size);
  const bar = element("div", { class: "pager", hidden: true }, range, previous, next);
  card.after(bar);
  return {
    size,
    get offset() { return offset; },
    reset() { offset = 0; },
    // show says which of count items are shown, of which there are more than one page.
    show(count, text) {
      const last = Math.min(count, offset + size);
      setText(range, text ?? `${formatCount(offset + 1)}–${formatCount(last)} of ${formatCount(count)}`);
      previous.hidden = next.hidden = count <= size;
      bar.hidden = count <= size && text === undefined;
      previous.disabled = offset === 0;
      next.disabled = last >= count;
    },
    // pageOf returns the items of the page, and shows which they are.
    pageOf(items) {
      if (offset >= items.length) offset = 0;
      this.show(items.length);
      return items.slice(offset, offset + size);
    },
  };
}

// view is what the page shows: the sums of "all" replicas, or "this" one. isSum reports that what it shows are sums.
export const view = {
  replicas: new URL(location.href).searchParams.get("replicas") === "this" ? "this" : "all",
  isSum: false,
};

// isOnScreen reports whether a part of target can be seen.
export function isOnScreen(target) {
  const { top, bottom } = target.getBoundingClientRect();
  return bottom > 0 && top < window.innerHeight;
}

// pageURL returns the address of a page of this port. It has no user and password, with which fetch would fail.
export function pageURL(path, parameters = {}) {
  const url = new URL(path, location.href);
  url.username = url.password = url.hash = "";
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== "") url.searchParams.set(name, value);
  }
  return url;
}

// getJSON returns the body of a page, of the replicas of view, as fetchJSON does.
export const getJSON = (path, parameters, options) => fetchJSON(pageURL(path, { ...parameters, replicas: view.replicas }), options);

// sendJSON posts a body to a page of this replica, as fetchJSON does.
export const sendJSON = (path, body) => fetchJSON(pageURL(path), {
  method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
});

// fetchJSON returns the body of an address. It throws an Error with the text and the status of a failure.
export async function fetchJSON(url, options) {
  const response = await fetch(url, options);
  if (!response.ok) {
    const error = new Error((await response.text()).trim() || `status ${response.status}`);
    error.status = response.status;
    throw error;
  }
  return response.json();
}

// ruleName returns the name of a rule without its domain.
export function ruleName(domain, rule) {
  return rule.startsWith(domain + ".") ? rule.slice(domain.length + 1) : rule;
}

// sharesText returns shares in per cent, in the order of the replicas: 65/35/<1. Of many replicas it returns the largest
// share, with the number of the replica: #12 has 40.
export function sharesText(shares) {
  if (!shares) return "";
  if (shares.length <= shownShares) return shares.map(formatShare).join("/");
  const largest = Math.max(...shares);
  return `#${shares.indexOf(largest) + 1} has ${formatShare(largest)}`;
}

const shownShares = 6;

// formatShare returns a share in per cent: 0, <1, 65.
export function formatShare(share) {
  return share > 0 && share < 0.005 ? "<1" : (100 * share).toFixed(0);
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

// formatRate returns a rate per second: 0, 0.3, 25, 1,250, 1.3M.
export function formatRate(rate) {
  if (rate >= 1e6) return compact.format(rate);
  return rate >= 100 ? whole.format(rate) : tenths.format(rate);
}

// formatCount returns a whole number: 12, 1,250, 1.3M.
export const formatCount = (count) => (count >= 1e6 ? compact : whole).format(count);

// formatUnits returns all digits of a number of units: 12, 99,999,999,999.
export const formatUnits = (units) => whole.format(units);

// formatSeconds returns a duration with its two largest units: 0.2 s, 5 min 3 s, 2 d 4 h.
export function formatSeconds(seconds) {
  if (seconds < 10) return `${tenths.format(Math.max(0, seconds))} s`;
  let rest = Math.round(seconds);
  const parts = [];
  for (const [name, size] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0) parts.push(`${whole.format(count)} ${name}`);
    else if (parts.length > 0) break;
    if (parts.length === 2) break;
  }
  return parts.join(" ");
}

// formatPercent returns a part in percent. Only nothing is 0 %, and only the whole is 100 %.
export function formatPercent(part, all) {
  const percent = (100 * part) / all;
  if (percent > 0 && percent < 1) return "less than 1 %";
  return percent > 99 && percent < 100 ? "more than 99 %" : `${percent.toFixed(0)} %`;
}

// isAlarming reports whether so many fail that somebody must look: 1 % or more.
export const isAlarming = (failed, all) => failed > 0 && failed >= all / 100;

// isSet reports whether the service sent an instant.
export const isSet = (instant) => Boolean(instant);

// formatTime returns the local time of day of an instant, and its date if that is not today.
export function formatTime(instant) {
  const at = new Date(instant);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}
