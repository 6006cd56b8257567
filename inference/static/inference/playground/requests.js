// From what the form says to the requests that are sent. Nothing here touches the page.

const COUNTED = { include_usage: true, continuous_usage_stats: true };

/**
 * `input` is {mode, text, model, answers, logprobs, system, turns, think, session, branch, asTurn}, `fields` one
 * parameter set's. Returns a list of {path, body, answers}: a session makes each answer by a request of its own.
 */
export function buildRequests(input, fields) {
  if (input.mode === "prompt") return [promptRequest(input, fields)];
  if (input.mode === "chat") return [chatRequest(input, fields)];
  return Array.from({ length: input.answers }, (_, number) => branchRequest(input, fields, number));
}

/** A request for one token, with the probabilities of the `count` likeliest. They are the model's own: no field changes them. */
export function buildNextTokenRequest(input, count) {
  const build = input.mode === "chat" ? chatRequest : promptRequest;
  const { path, body } = build({ ...input, answers: 1, logprobs: count }, { temperature: 0, max_tokens: 1 });
  return { path, body: { ...body, stream: undefined, stream_options: undefined } };
}

function promptRequest(input, fields) {
  const logprobs = input.logprobs ? { logprobs: input.logprobs } : {};
  const body = { ...model(input), prompt: input.text, ...fields, ...several(input), ...logprobs };
  return { path: "/v1/completions", answers: input.answers, body: { ...body, stream: true, stream_options: COUNTED } };
}

function chatRequest(input, fields) {
  const messages = [];
  if (input.system) messages.push({ role: "system", content: input.system });
  for (const turn of input.turns) {
    messages.push({ role: "user", content: turn.user }, { role: "assistant", content: turn.assistant });
  }
  messages.push({ role: "user", content: input.text });
  const logprobs = input.logprobs ? { logprobs: true, top_logprobs: input.logprobs } : {};
  const think = input.think ? { enable_think: true } : {};
  const body = { ...model(input), messages, ...think, ...fields, ...several(input), ...logprobs };
  return { path: "/v1/chat/completions", answers: input.answers, body: { ...body, stream: true, stream_options: COUNTED } };
}

function branchRequest(input, fields, number) {
  const prompt = input.asTurn ? `User: ${input.text}\n\nAssistant:` : input.text;
  const seed = fields.seed === undefined ? {} : { seed: fields.seed + number }; // else all would be the same
  const body = { session_id: input.session, dialogue_idx: input.branch, contents: [prompt], ...fields, ...seed };
  const streamed = { chunk_size: 1, stream: true, stream_options: { include_usage: true } };
  return { path: "/multi_state/chat/completions", answers: 1, body: { ...body, ...streamed } };
}

const model = (input) => (input.model ? { model: input.model } : {}); // none is loaded yet: the server says so
const several = (input) => (input.answers > 1 ? { n: input.answers } : {});
