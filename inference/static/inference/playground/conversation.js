// The turns of a chat so far, which every request of it carries along.

import { element, text } from "./setup.js";

const list = document.getElementById("turns");
const turns = [];

export const allTurns = () => turns;

export function addTurn(turn) {
  turns.push(turn);
  list.append(item(text("you"), turn.user, "user"), item(text("model"), turn.assistant, "model"));
}

export function clearTurns() {
  turns.length = 0;
  list.replaceChildren();
}

function item(who, words, className) {
  return element("li", { className }, element("span", { className: "who small dim", textContent: who }), element("p", { textContent: words }));
}
