// Asking for an API key where the server wants one.

import { ApiError, call, key } from "./api.js";
import { text } from "./setup.js";

const form = document.getElementById("key-form");
const input = document.getElementById("key");
const problem = document.getElementById("key-error");
const kept = document.getElementById("key-kept");

/** Ask for a key, and tell why where the last one was refused. */
export function askForKey() {
  problem.textContent = key.get() ? text("keyRefused") : "";
  key.forget();
  kept.hidden = true;
  form.hidden = false;
  input.focus();
}

/** `admitted` is called with the list of models each time the server has let us in. */
export async function startKeyForm(admitted) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(input.value);
    enter(admitted);
  });
  document.getElementById("forget-key").addEventListener("click", () => {
    key.forget();
    askForKey();
  });
  if (form.hidden || key.get()) await enter(admitted);
}

async function enter(admitted) {
  try {
    const models = await call("/v1/models");
    form.hidden = true;
    input.value = "";
    kept.hidden = !key.get();
    admitted(models.data.map(({ id }) => id));
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) askForKey();
    else admitted([]);
  }
}
