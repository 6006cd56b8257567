"""Sessions and tuned states in the admin: one module for each kind of page."""

from sessions.admin import initial_states, sessions

__all__ = ["initial_states", "sessions"]
