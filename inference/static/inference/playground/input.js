// The upper part of the form: what is asked, and in which way.

import { current } from "./branches.js";
import { allTurns } from "./conversation.js";
import { text } from "./setup.js";

const form = document.getElementById("request");
const area = document.getElementById("text");
const CANDIDATES = 5; // shown for each token of an answer

const byId = (id) => document.getElementById(id);

export const mode = () => form.elements.mode.value;

/** What `buildRequests` takes. */
export function readInput() {
  return {
    mode: mode(),
    text: area.value,
    model: byId("model").value,
    answers: readAnswers(),
    logprobs: byId("probabilities").checked ? CANDIDATES : 0,
    system: byId("system").value.trim(),
    turns: allTurns(),
    think: byId("think").checked,
    asTurn: byId("as-turn").checked,
    ...current(),
  };
}

/** A number that can be asked for, whatever is typed as yet: the code is shown while one types. */
function readAnswers() {
  const { valueAsNumber, max } = byId("answers");
  return Math.min(Math.max(Math.trunc(valueAsNumber) || 1, 1), Number(max));
}

/** Whether the form can be sent. If not, the visitor is told at the field. */
export function isComplete() {
  const isEmpty = area.value.trim() === "";
  byId("text-error").textContent = isEmpty ? text("needsText") : "";
  if (isEmpty) {
    area.setAttribute("aria-invalid", "true");
    area.focus();
    return false;
  }
  const wrong = form.querySelector(":invalid:not(fieldset)");
  wrong?.closest("details")?.setAttribute("open", ""); // a browser cannot point at what is folded away
  return form.reportValidity();
}

export function setText(value) {
  area.value = value;
}

export function appendText(added) {
  area.value += added;
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

/** `send` and `stop` are what the keyboard does in the text; `modeChanged` is called when another mode was chosen. */
export function startInput({ send, stop, modeChanged }) {
  form.addEventListener("change", (event) => {
    if (event.target.name !== "mode") return;
    showMode();
    modeChanged();
  });
  area.addEventListener("input", () => {
    byId("text-error").textContent = "";
    area.removeAttribute("aria-invalid");
  });
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && stop());
  showMode();
}

function showMode() {
  for (const part of form.querySelectorAll("[data-modes]")) part.hidden = !part.dataset.modes.split(" ").includes(mode());
  const kind = mode() === "prompt" ? "Prompt" : "Chat";
  byId("text-label").textContent = text(`label${kind}`);
  area.placeholder = text(`placeholder${kind}`);
}

/** Fills the list of models. */
export function showModels(ids) {
  byId("model").replaceChildren(...ids.map((id) => new Option(id, id)));
  byId("model").disabled = ids.length === 0;
}
