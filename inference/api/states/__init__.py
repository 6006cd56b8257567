"""Sessions and uploaded states."""
