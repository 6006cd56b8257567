// What went wrong, in the language of the page. The server's own words are English, and are quoted.

import { ApiError } from "./api.js";
import { element, text } from "./setup.js";

const REASONS = { 401: "needsKey", 409: "sessionTaken", 413: "tooLarge", 429: "tooMuch", 503: "notNow" };

/** `error` is an ApiError, or what fetch throws where the server is away. Returns an element. */
export function describeFailure(error) {
  if (!(error instanceof ApiError)) return element("span", {}, text("unreachable"));
  const reason = text(reasonOf(error.status));
  const quoted = element("q", { lang: "en", textContent: error.message });
  return element("span", {}, ...(error.message ? [`${reason} ${text("serverSays")} `, quoted] : [reason]));
}

function reasonOf(status) {
  if (status === 0) return "brokeOff";
  return REASONS[status] ?? (status >= 500 ? "serverFailed" : "refused");
}
