// The candidates for one token, as a table with bars.

import { element, text } from "./setup.js";

const section = document.getElementById("candidates");
const title = document.getElementById("candidates-title");
const list = document.getElementById("candidates-list");

/** `candidates` is a list of {token, probability}; `take` is called with a token that is to be appended, if it may. */
export function showCandidates(heading, candidates, take = null) {
  title.textContent = heading;
  const head = element("tr", {}, header(text("token")), header(text("probability")));
  const body = element("tbody", {}, ...candidates.map((candidate) => row(candidate, take)));
  list.replaceChildren(element("table", { className: "candidates" }, element("thead", {}, head), body));
  section.hidden = false;
  section.scrollIntoView({ block: "nearest" });
}

export function hideCandidates() {
  section.hidden = true;
}

const header = (name) => element("th", { scope: "col", textContent: name });

function row({ token, probability }, take) {
  const percent = `${(100 * probability).toFixed(2)} %`;
  const bar = element("span", { className: "bar" });
  bar.style.setProperty("--share", probability);
  const shown = visible(token);
  let name = element("code", { textContent: shown });
  if (take) {
    name = element("button", { type: "button", className: "quiet compact mono", textContent: shown, title: text("takeToken", { token: shown }) });
    name.addEventListener("click", () => take(token));
  }
  return element("tr", {}, element("td", {}, name), element("td", { className: "share" }, bar, element("span", { className: "number", textContent: percent })));
}

/** White space that one can see. */
export const visible = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
