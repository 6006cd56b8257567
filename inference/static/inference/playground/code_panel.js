// "The same request": what would be sent now, as code to copy.

import { key } from "./api.js";
import { asCurl, asPython } from "./code.js";
import { text } from "./setup.js";

const pre = document.getElementById("code");
const choice = document.getElementById("code-set");
const status = document.getElementById("copy-status");
const buttons = [...document.querySelectorAll("[data-code]")];
const writers = { curl: asCurl, python: asPython };

let shown = []; // {label, request}

/** Show one of these requests, to choose by their labels: `requests` has {label, request} for each. */
export function showRequests(requests) {
  const chosen = Math.min(Math.max(choice.selectedIndex, 0), requests.length - 1);
  shown = requests;
  choice.replaceChildren(...requests.map(({ label }) => new Option(label)));
  choice.selectedIndex = chosen;
  choice.hidden = requests.length < 2;
  write();
}

export function startCodePanel() {
  choice.addEventListener("change", write);
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      write();
    });
  }
  document.getElementById("copy").addEventListener("click", copy);
}

function write() {
  const form = buttons.find((button) => button.getAttribute("aria-pressed") === "true").dataset.code;
  pre.textContent = writers[form](shown[Math.max(choice.selectedIndex, 0)].request, location.origin, Boolean(key.get()));
  status.textContent = "";
}

async function copy() {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    status.textContent = text("copied");
  } catch {
    status.textContent = text("notCopied"); // no permission, or not a secure context: there is no clipboard then
  }
}
