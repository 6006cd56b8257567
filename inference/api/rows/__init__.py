"""Rows of the engine: queued, awaited, and read back as choices of text. Knows no HTTP."""
