"""What every endpoint stands on: admission, errors, bodies read against schemas, replies, streams."""
