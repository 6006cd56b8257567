// Keeps the parts of #live up to date with the HTML that the server renders: over a WebSocket, and by polling
// while there is none. Only what differs is changed, so that focus, open details and scroll positions stay.
"use strict";

const POLL_MS = 2000;
const RECONNECT_MS = 1000;
const MOST_RECONNECT_MS = 30000;

const live = document.getElementById("live");
const state = document.getElementById("live-state");
const form = document.getElementById("cancel");
const words = document.getElementById("cancel-words");
let polling = null;
let reconnectMs = RECONNECT_MS;

/** An answer of the server that is an error. `status` is HTTP's, 0 where it leads elsewhere: the login is over. */
class Refusal extends Error {
  constructor(status) {
    super(`status ${status}`);
    this.status = status;
  }
}

/** The JSON of an answer. Throws Refusal, or what fetch throws where the server is away. */
async function ask(address, options = {}) {
  const response = await fetch(address, { headers: { Accept: "application/json" }, redirect: "manual", ...options });
  if (!response.ok) throw new Refusal(response.status);
  return response.json();
}

/** In the language of the page; a browser's own words for what went wrong are in its language. */
function reason(error) {
  if (!(error instanceof Refusal)) return live.dataset.unreachable;
  return error.status ? live.dataset.refused.replace("{status}", error.status) : live.dataset.signedOut;
}

function show(part, html) {
  const place = live.querySelector(`[data-part="${part}"]`);
  const fresh = place.cloneNode(false);
  fresh.innerHTML = html;
  updateChildren(place, fresh);
}

function update(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(fresh);
  } else if (old.nodeType !== Node.ELEMENT_NODE) {
    old.data = fresh.data;
  } else {
    updateAttributes(old, fresh);
    updateChildren(old, fresh);
  }
}

function updateAttributes(old, fresh) {
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name); // what somebody has unfolded stays so
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
}

function updateChildren(old, fresh) {
  const ids = new Set([...fresh.children].map((child) => child.id));
  for (const child of [...old.children]) {
    if (child.id && !ids.has(child.id)) child.remove(); // so that those behind it keep their elements
  }
  const wanted = [...fresh.childNodes];
  wanted.forEach((child, place) => {
    if (place < old.childNodes.length) update(old.childNodes[place], child);
    else old.append(child);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

async function poll() {
  try {
    for (const [part, html] of Object.entries(await ask(live.dataset.poll))) show(part, html);
    if (polling) state.textContent = live.dataset.polling;
  } catch (error) {
    state.textContent = `${live.dataset.stopped} (${reason(error)})`;
  }
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(`${scheme}//${location.host}${live.dataset.socket}`);
  socket.onopen = () => {
    clearInterval(polling);
    polling = null;
    reconnectMs = RECONNECT_MS;
    state.textContent = live.dataset.live;
  };
  socket.onmessage = (event) => {
    const { part, html } = JSON.parse(event.data);
    show(part, html);
  };
  socket.onclose = () => {
    polling ??= setInterval(poll, POLL_MS);
    setTimeout(connect, reconnectMs);
    reconnectMs = Math.min(2 * reconnectMs, MOST_RECONNECT_MS);
  };
}

async function cancel(event) {
  event.preventDefault();
  const button = event.submitter;
  if (button.dataset.confirm && !confirm(button.dataset.confirm)) return;
  const body = new FormData(form, button);
  try {
    words.textContent = (await ask(form.action, { method: "POST", body })).message;
  } catch (error) {
    words.textContent = reason(error);
  }
}

// Where a chart is wider than the screen, what is now is at its end.
for (const chart of live.querySelectorAll(".chart-figure > .chart-scroll")) chart.scrollLeft = chart.scrollWidth;
form.addEventListener("submit", cancel);
connect();
