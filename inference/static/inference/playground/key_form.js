// Asking for an API key where the server wants one.

import { ApiError, call, key } from "./api.js";
import { text } from "./setup.js";

const form = document.getElementById("key-form");
const input = document.getElementById("key");
const problem = document.getElementById("key-error");
const kept = document.getElementById("key-kept");
const AGAIN_MS = 3000; // until the server is asked again, while it is away or loads its model

let again = null;

/** Ask for a key, and tell why where the last one was refused. */
export function askForKey() {
  clearTimeout(again);
  problem.textContent = key.get() ? text("keyRefused") : "";
  key.forget();
  kept.hidden = true;
  form.hidden = false;
  input.focus();
}

/**
 * `admitted` is called with the list of models each time the server has let us in, and `failed` with the error where it
 * could not be asked. It is asked again until it has a model.
 */
export async function startKeyForm({ admitted, failed }) {
  const enter = async () => {
    clearTimeout(again);
    let models;
    try {
      models = (await call("/v1/models")).data;
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        askForKey();
      } else {
        again = setTimeout(enter, AGAIN_MS);
        failed(error);
      }
      return;
    }
    form.hidden = true;
    input.value = "";
    kept.hidden = !key.get();
    if (!models.length) again = setTimeout(enter, AGAIN_MS);
    admitted(models.map(({ id }) => id));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    key.set(input.value);
    enter();
  });
  document.getElementById("forget-key").addEventListener("click", () => {
    key.forget();
    askForKey();
  });
  if (form.hidden || key.get()) await enter();
}
