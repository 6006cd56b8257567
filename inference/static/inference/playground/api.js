// Calls of this server's own API: plain ones, and streams of server-sent events.

const KEY = "api-key";

/** An answer that is an error. `status` is HTTP's, 0 where a stream broke off; `message` is what the server says, if it does. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The key that the visitor typed. It stays in this tab, and goes to this server alone. */
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** GET `path`, or POST where there is a body. Returns the reply; throws ApiError, or an AbortError. */
export async function call(path, body = null, signal = null) {
  return (await send(path, body, signal)).json();
}

/** POST `body`, and yield each event of the stream. Throws ApiError, or an AbortError once `signal` is aborted. */
export async function* stream(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError(0, "");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: ?/, "");
      if (data === "[DONE]") return;
      const frame = JSON.parse(data);
      if (frame.error) throw new ApiError(0, messageOf(frame));
      yield frame;
    }
  }
}

async function send(path, body, signal) {
  const headers = { Accept: "application/json" };
  if (body) headers["Content-Type"] = "application/json";
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const method = body ? "POST" : "GET";
  const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  if (!response.ok) throw new ApiError(response.status, await errorMessage(response));
  return response;
}

async function errorMessage(response) {
  const content = await response.text();
  try {
    return messageOf(JSON.parse(content));
  } catch {
    return content || response.statusText; // not ours: a proxy's page, say
  }
}

/** OpenAI's routes say {error: {message}}, the native ones {error: "..."}. */
const messageOf = (reply) => reply.error?.message ?? String(reply.error);
