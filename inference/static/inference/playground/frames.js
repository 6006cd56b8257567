// What the frames of the three kinds of streams say, in one form. Nothing here touches the page.

/** Returns {news: [{index, text, thoughts, reason, tokens}], total, branch}; what a frame does not say is missing. */
export function readFrame(frame) {
  return {
    news: (frame.choices ?? []).map(readChoice),
    total: frame.usage?.completion_tokens,
    branch: frame.dialogue_idx,
  };
}

function readChoice(choice) {
  return {
    index: choice.index,
    text: choice.text ?? choice.delta?.content ?? "",
    thoughts: choice.delta?.reasoning_content ?? "",
    reason: choice.finish_reason ?? null,
    tokens: readTokens(choice.logprobs),
  };
}

/** A list of {token, probability, candidates: [{token, probability}]}, null where a choice has no logprobs. */
export function readTokens(logprobs) {
  if (logprobs?.content) {
    return logprobs.content.map((entry) => ranked(entry.token, entry.logprob, entry.top_logprobs.map((top) => [top.token, top.logprob])));
  }
  if (logprobs?.tokens) {
    return logprobs.tokens.map((token, place) =>
      ranked(token, logprobs.token_logprobs[place], Object.entries(logprobs.top_logprobs[place])));
  }
  return null;
}

function ranked(token, logprob, candidates) {
  const sorted = candidates.sort((one, other) => other[1] - one[1]);
  return {
    token,
    probability: Math.exp(logprob),
    candidates: sorted.map(([name, value]) => ({ token: name, probability: Math.exp(value) })),
  };
}
