"""OpenAI's routes, with vLLM's additions: completions, chat, responses, files, batches, models."""
