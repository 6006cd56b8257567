// Keeps #live up to date with the HTML that the server renders: over a WebSocket, and by polling while
// there is none.
"use strict";

const POLL_MS = 2000;
const RECONNECT_MS = 5000;

const live = document.getElementById("live");
const state = document.getElementById("live-state");
let polling = null;

function show(message, how) {
  live.innerHTML = message.html;
  state.textContent = how;
}

async function poll() {
  try {
    const response = await fetch(live.dataset.poll, { headers: { Accept: "application/json" } });
    if (!response.ok) throw new Error(`the server answered ${response.status}`);
    show(await response.json(), "every 2 seconds");
  } catch (error) {
    state.textContent = `stopped (${error.message}); trying again`;
  }
}

function connect() {
  const scheme = location.protocol === "https:" ? "wss:" : "ws:";
  const socket = new WebSocket(`${scheme}//${location.host}${live.dataset.socket}`);
  socket.onmessage = (event) => {
    clearInterval(polling);
    polling = null;
    show(JSON.parse(event.data), "live");
  };
  socket.onclose = () => {
    polling ??= setInterval(poll, POLL_MS);
    setTimeout(connect, RECONNECT_MS);
  };
}

connect();
