"""From the fields of a body to rows of the engine, and from their tokens back to text."""
