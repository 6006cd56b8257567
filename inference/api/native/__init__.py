"""The routes of the older RWKV servers: batches of raw prompts, FIM, translation."""
