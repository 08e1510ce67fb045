// The connection to /api/events.

import { pageURL, view } from "./dom.js";

const retryMilliseconds = 1000;
const silenceMilliseconds = 5000; // The service sends an update each second.

const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// becomesVisible resolves when the page can be seen.
function becomesVisible() {
  return new Promise((done) => {
    const check = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", check);
      done();
    };
    document.addEventListener("visibilitychange", check);
    check();
  });
}

let current = new AbortController(); // of the connection

// reconnect connects again at once, to the replicas of view.
export function reconnect() {
  current.abort("reconnect");
}

// listen calls onEvent(name, data) for each event and connects again when the connection ends. It calls
// onConnected and onDisconnected(reason) when this changes. A hidden page is not connected, because a
// browser has few connections for all pages of a server.
export async function listen({ onEvent, onConnected, onDisconnected }) {
  for (;;) {
    await becomesVisible();
    const abort = current = new AbortController();
    const closeIfHidden = () => document.hidden && abort.abort("hidden");
    document.addEventListener("visibilitychange", closeIfHidden);
    try {
      await readEvents(abort, onConnected, onEvent);
      onDisconnected("the service ended the connection");
    } catch (error) {
      if (abort.signal.reason === "reconnect") continue;
      if (abort.signal.reason !== "hidden") onDisconnected(error.message ?? String(error));
    } finally {
      abort.abort("ended");
      document.removeEventListener("visibilitychange", closeIfHidden);
    }
    await sleep(retryMilliseconds);
  }
}

// readEvents reads one connection to its end.
async function readEvents(abort, onConnected, onEvent) {
  let watchdog;
  const expectEvent = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => abort.abort(new Error("the service is silent")), silenceMilliseconds);
  };
  expectEvent();
  try {
    const response = await fetch(pageURL("api/events", { replicas: view.replicas }), { signal: abort.signal });
    if (!response.ok) throw new Error((await response.text()).trim());
    onConnected();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      expectEvent();
      const events = (buffer + value).split("\n\n");
      buffer = events.pop();
      for (const event of events) dispatch(event, onEvent);
    }
  } finally {
    clearTimeout(watchdog);
  }
}

function dispatch(text, onEvent) {
  let name = "", data = "";
  for (const line of text.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    if (line.startsWith("data: ")) data = line.slice(6);
  }
  if (name) onEvent(name, JSON.parse(data));
}
