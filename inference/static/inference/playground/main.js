// The playground: puts the parts together, and keeps track of what runs and of what the next turn continues.

import { call } from "./api.js";
import { addBranch, chooseBranch, deleteSession, startBranches } from "./branches.js";
import { hideCandidates, showCandidates } from "./candidates.js";
import { showRequests, startCodePanel } from "./code_panel.js";
import { addTurn, clearTurns } from "./conversation.js";
import { describeFailure } from "./failures.js";
import { readTokens } from "./frames.js";
import { appendText, isComplete, mode, readInput, setText, showModels, startInput } from "./input.js";
import { askForKey, startKeyForm } from "./key_form.js";
import { readSets, startParameters } from "./parameters.js";
import { buildNextTokenRequest, buildRequests } from "./requests.js";
import { Run } from "./run.js";
import { setup, text } from "./setup.js";

const byId = (id) => document.getElementById(id);
const form = byId("request");
const runsElement = byId("runs");
const nothingYet = runsElement.firstElementChild;

let runs = []; // of the last request, one for each parameter set
let pending = null; // a chat's last turn, {user, answer}: part of the conversation once another one follows
let picked = null; // the answer that is marked as the one to continue
let isRunning = false;

async function send() {
  if (isRunning || !isComplete()) return;
  const input = currentInput();
  commitTurn();
  hideCandidates();
  showCode(input);
  const pick = chooser(input);
  const own = readSets().map(({ name, fields }) => new Run({ name, requests: buildRequests(input, fields), chosen: pick }));
  picked = null;
  runs = own;
  runsElement.replaceChildren(...runs.map((run) => run.element));
  if (input.mode !== "prompt") setText("");
  setRunning(true);
  const problems = (await Promise.all(own.map((run) => run.finish()))).filter(Boolean);
  setRunning(false);
  if (own !== runs) return; // the visitor started over
  if (problems.length && !own.some((run) => run.tokens)) setText(input.text); // nothing came of it: it can be mended
  tellEnd(problems);
  settle(input, pick);
}

function stop() {
  if (!isRunning) return;
  for (const run of runs) run.stop();
}

/** What happens when the visitor picks an answer; null where there is nothing to continue. */
function chooser(input) {
  if (input.mode === "prompt") return null;
  return (answer) => {
    if (input.mode === "chat") pending = { user: input.text, answer };
    else if (answer.branch !== null) chooseBranch(answer.branch);
    mark(answer);
  };
}

/** The next turn continues the answer that was picked while others still came, else the first that came to something. */
function settle(input, pick) {
  if (!pick) return;
  const answers = runs.flatMap((run) => run.answers).filter((answer) => (input.mode === "chat" ? answer.text : answer.branch !== null));
  if (input.mode === "session") {
    for (const { branch, text: reply } of answers) addBranch(input.session, { index: branch, parent: input.branch, user: input.text, reply });
  }
  const next = answers.includes(picked) ? picked : answers[0];
  if (next) pick(next);
}

function mark(chosen) {
  picked = chosen;
  for (const answer of runs.flatMap((run) => run.answers)) answer.markChosen(answer === chosen);
}

/** The form's input; of a chat, together with the turn whose answers are still on show. */
function currentInput() {
  const input = readInput();
  return input.mode === "chat" && pending ? { ...input, turns: [...input.turns, turnOf(pending)] } : input;
}

function commitTurn() {
  if (mode() !== "chat" || !pending) return;
  addTurn(turnOf(pending));
  pending = null;
}

const turnOf = ({ user, answer }) => ({ user, assistant: answer.text.trim() });

function setRunning(running) {
  isRunning = running;
  byId("send").disabled = running;
  byId("stop").disabled = !running;
  if (running) tell(text("streaming"));
}

function tellEnd(problems) {
  const count = runs.reduce((sum, run) => sum + run.tokens, 0);
  if (problems.length) tellFailure(problems[0]);
  else tell(runs.some((run) => run.stopped) ? text("stopped") : text("finished", { count }));
}

function tellFailure(error) {
  if (error.status === 401) askForKey();
  tell(describeFailure(error));
}

/** What is said already is not said again: it would be read out once more. */
function tell(news) {
  const status = byId("status");
  if (status.textContent !== (news.textContent ?? news)) status.replaceChildren(news);
}

async function showNextToken() {
  if (isRunning || !isComplete()) return;
  const { path, body } = buildNextTokenRequest(currentInput(), setup.candidates);
  try {
    const reply = await call(path, body);
    const [token] = readTokens(reply.choices[0].logprobs) ?? [];
    const take = mode() === "prompt" ? takeToken : null;
    if (token) showCandidates(text("candidatesAfter"), token.candidates, take);
  } catch (error) {
    tellFailure(error);
  }
}

function takeToken(token) {
  appendText(token);
  showNextToken();
}

function startOver() {
  stop();
  pending = null;
  runs = [];
  clearTurns();
  setText("");
  hideCandidates();
  runsElement.replaceChildren(nothingYet);
  tell("");
  byId("text").focus();
}

async function removeSession() {
  if (!confirm(text("confirmDelete"))) return;
  try {
    await deleteSession();
    tell(text("deleted"));
  } catch (error) {
    tellFailure(error);
  }
}

/** What would be sent now; while there is nothing to send, what was sent last stays. */
function showCode(input = currentInput()) {
  const wasSent = runs.length > 0 && input.text === "";
  if (wasSent) return;
  showRequests(readSets().flatMap(({ name, fields }) => {
    const requests = buildRequests(input, fields);
    return requests.map((request, place) => ({ label: labelOf(name, requests.length > 1 ? place + 1 : 0), request }));
  }));
}

/** What tells a request from the others: its set, and its answer's number where each answer has a request. */
function labelOf(name, number) {
  if (name && number) return text("setAndAnswer", { name, number });
  return number ? text("answer", { number }) : text("set", { name });
}

startInput({ send, stop, modeChanged: hideCandidates });
startParameters(() => showCode());
startBranches(tellFailure);
startCodePanel();
form.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
form.addEventListener("input", () => showCode());
form.addEventListener("change", () => showCode());
byId("stop").addEventListener("click", stop);
byId("clear").addEventListener("click", startOver);
byId("next-token").addEventListener("click", showNextToken);
byId("delete-session").addEventListener("click", removeSession);
startKeyForm({
  admitted: (ids) => {
    showModels(ids);
    if (!isRunning) tell(ids.length ? "" : text("noModel"));
    showCode();
  },
  failed: (error) => isRunning || tellFailure(error),
});
showCode();
