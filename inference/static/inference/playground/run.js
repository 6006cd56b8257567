// One request on its way: its answers side by side, how fast they come, and a button that stops it.

import { stream } from "./api.js";
import { showCandidates, visible } from "./candidates.js";
import { describeFailure } from "./failures.js";
import { readFrame } from "./frames.js";
import { element, text } from "./setup.js";

export class Run {
  /** `requests` are those of one parameter set, whose answers come in that order. */
  constructor({ name, requests, chosen }) {
    this.requests = requests;
    this.answers = requests.flatMap(({ answers }) => Array.from({ length: answers }, () => null));
    this.answers = this.answers.map((_, place) => new Answer(name, place, this.answers.length, chosen));
    this.aborter = new AbortController();
    this.counts = requests.map(() => 0);
    this.firstCount = 0;
    this.started = this.first = this.last = 0;
    this.stopped = false;
    this.stats = element("p", { className: "stats small number", textContent: text("waiting") });
    this.stopButton = element("button", { type: "button", className: "compact", textContent: text("stop") });
    this.stopButton.addEventListener("click", () => this.stop());
    const head = element("div", { className: "row between" }, ...(name ? [element("h3", { textContent: text("set", { name }) })] : []), this.stats, this.stopButton);
    const columns = element("div", { className: "answers" }, ...this.answers.map((answer) => answer.element));
    this.element = element("section", { className: "run stack tight" }, head, columns);
  }

  get tokens() {
    return this.counts.reduce((sum, count) => sum + count, 0);
  }

  stop() {
    this.stopped = true;
    this.aborter.abort();
  }

  /** Runs to the end, or until it is stopped. Throws nothing; returns the error that ended it, if one did. */
  async finish() {
    this.started = performance.now();
    let offset = 0;
    const streams = this.requests.map((request, place) => {
      const answers = this.answers.slice(offset, (offset += request.answers));
      return this.follow(request, place, answers);
    });
    const results = await Promise.all(streams);
    this.stopButton.hidden = true;
    this.showStats();
    return results.find((result) => result !== null) ?? null;
  }

  async follow(request, place, answers) {
    let counted = 0;
    try {
      for await (const frame of stream(request.path, request.body, this.aborter.signal)) {
        const { news, total, branch } = readFrame(frame);
        for (const part of news) {
          answers[part.index].write(part);
          if (part.text || part.thoughts || part.tokens?.length) counted += part.tokens?.length || 1;
        }
        // Where the server does not count along, a frame is one token; its last frame has the true number.
        this.count(place, total ?? counted);
        if (branch !== undefined) answers[0].branch = branch;
      }
      return null;
    } catch (error) {
      if (this.stopped) return null;
      for (const answer of answers) answer.fail(error);
      return error;
    } finally {
      for (const answer of answers) answer.end(this.stopped);
    }
  }

  count(place, tokens) {
    if (tokens === 0) return;
    this.counts[place] = tokens;
    this.last = performance.now();
    if (!this.first) {
      this.first = this.last;
      this.firstCount = this.tokens;
    }
    this.showStats();
  }

  showStats() {
    if (!this.first) {
      this.stats.textContent = this.stopButton.hidden ? text("tokens", { count: 0 }) : text("waiting");
      return;
    }
    const seconds = (this.last - this.first) / 1000;
    const parts = [text("tokens", { count: this.tokens })];
    if (seconds > 0) parts.push(text("speed", { speed: ((this.tokens - this.firstCount) / seconds).toFixed(1) }));
    parts.push(text("firstToken", { milliseconds: Math.round(this.first - this.started) }));
    this.stats.textContent = parts.join(" · ");
  }
}

/** One answer's column. `chosen` is called with it when the visitor wants to go on from it. */
class Answer {
  constructor(set, place, count, chosen) {
    this.text = "";
    this.branch = null;
    this.reason = null;
    this.body = element("div", { className: "answer-text" });
    this.body.setAttribute("aria-live", "polite");
    this.body.setAttribute("aria-busy", "true"); // read out when it is complete, not token by token
    this.foot = element("div", { className: "row small dim answer-foot" });
    const names = [...(set ? [text("set", { name: set })] : []), ...(count > 1 || set ? [text("answer", { number: place + 1 })] : [])];
    this.element = element("article", { className: "card answer stack tight" });
    if (names.length) {
      this.element.setAttribute("aria-label", names.join(", "));
      if (count > 1) this.element.append(element("h4", { className: "small dim", textContent: names.at(-1) }));
    }
    this.element.append(this.body, this.foot);
    this.chooseButton = element("button", { type: "button", className: "compact push choose", textContent: text("continueWith") });
    this.chooseButton.addEventListener("click", () => chosen(this));
    this.choosable = Boolean(chosen) && (count > 1 || Boolean(set));
  }

  write({ text: added, thoughts, reason, tokens }) {
    this.text += added;
    this.reason = reason ?? this.reason;
    if (thoughts) this.think(thoughts);
    if (tokens) this.body.append(...tokens.map(tokenButton));
    else if (added) this.body.append(added);
  }

  think(thoughts) {
    if (!this.thoughts) {
      this.thoughts = element("div", { className: "thoughts" });
      this.body.before(element("details", { open: true }, element("summary", { textContent: text("thoughts") }), this.thoughts));
    }
    this.thoughts.append(thoughts);
  }

  fail(error) {
    this.reason = "failed";
    this.element.append(element("p", { className: "notice error", role: "alert" }, describeFailure(error)));
  }

  end(stopped) {
    this.body.normalize(); // one text node in place of one for each token
    this.body.setAttribute("aria-busy", "false");
    const reason = this.reason ?? (stopped ? "stopped" : "stop");
    this.foot.append(element("span", { textContent: text(`reason_${reason}`) }));
    if (this.choosable && reason !== "failed") this.foot.append(this.chooseButton);
  }

  markChosen(isChosen) {
    this.element.classList.toggle("chosen", isChosen);
    this.chooseButton.setAttribute("aria-pressed", String(isChosen));
    this.chooseButton.textContent = text(isChosen ? "continuing" : "continueWith");
  }
}

function tokenButton({ token, probability, candidates }) {
  const percent = `${(100 * probability).toFixed(1)} %`;
  const button = element("button", { type: "button", className: "token", textContent: token, title: percent });
  button.style.setProperty("--doubt", 1 - probability);
  button.addEventListener("click", () => showCandidates(text("candidatesAt", { token: visible(token) }), candidates));
  return button;
}
