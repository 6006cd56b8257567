// A session and its branches: which there are, and from which one the next answer goes on.

import { call } from "./api.js";
import { element, text } from "./setup.js";

const KEPT = "playground-session"; // in the tab, so that a reload finds the branches again
const list = document.getElementById("branches");
const input = document.getElementById("session");

let session = restore();

/** What requests name: the session's id, and the number of the branch that is chosen. */
export const current = () => ({ session: input.value.trim(), branch: session.chosen });

/** `branch` is {index, parent, user, reply}. One that another session has got meanwhile is not shown. */
export function addBranch(id, branch) {
  if (id !== session.id) return;
  session.branches.push(branch);
  keep();
  draw();
}

export function chooseBranch(index) {
  session.chosen = index;
  keep();
  draw();
}

/** Deletes the session on the server, with all its branches. Throws ApiError. */
export async function deleteSession() {
  await call("/state/delete", { session_id: current().session, delete_prefix: true });
  begin(newSession(current().session));
}

/** `tellFailure` is called with the error when the server does not tell a session's branches. */
export function startBranches(tellFailure) {
  begin(session);
  document.getElementById("new-session").addEventListener("click", () => begin(newSession()));
  input.addEventListener("change", () => open().catch(tellFailure));
  list.addEventListener("change", (event) => {
    session.chosen = Number(event.target.value);
    keep();
  });
}

/** Goes on with the session whose id was typed: the server knows its branches, though not what grew from what. */
async function open() {
  begin(newSession(input.value.trim() || undefined));
  const { id } = session;
  const { sessions } = await call("/state/status");
  if (session.id !== id) return;
  const keys = sessions.map((item) => item.session_id).filter((key) => key.startsWith(`${id}:`));
  session.branches = keys.map((key) => ({ index: Number(key.slice(id.length + 1)), parent: 0 })).filter(({ index }) => index > 0);
  keep();
  draw();
}

function begin(value) {
  session = value;
  input.value = session.id;
  keep();
  draw();
}

function newSession(id = `playground-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`) {
  return { id, chosen: 0, branches: [] };
}

function restore() {
  const kept = sessionStorage.getItem(KEPT);
  return kept ? JSON.parse(kept) : newSession();
}

function keep() {
  sessionStorage.setItem(KEPT, JSON.stringify(session));
}

function draw() {
  list.replaceChildren(branchItems([{ index: 0, label: text("beginning") }]));
}

/** The branches of one parent, each with those that grew from it. */
function branchItems(branches) {
  return element("ul", {}, ...branches.map(({ index, label, user, reply }) => {
    const radio = element("input", { type: "radio", name: "branch", value: index, checked: index === session.chosen });
    const name = label ?? text("branch", { index });
    const words = user === undefined ? [] : [element("span", { className: "dim", textContent: ` ${short(user)} → ${short(reply)}` })];
    const grown = session.branches.filter(({ parent }) => parent === index).sort((one, other) => one.index - other.index);
    const item = element("li", {}, element("label", { className: "check" }, radio, element("span", {}, name, ...words)));
    if (grown.length) item.append(branchItems(grown));
    return item;
  }));
}

function short(words, most = 40) {
  const line = words.trim().replace(/\s+/g, " ");
  return [...line].length > most ? `${[...line].slice(0, most).join("")}…` : line;
}
