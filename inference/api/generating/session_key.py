"""Which session a request names: a field of its body or a header, the same for every route that has sessions."""

from rest_framework.request import Request

from inference.api.edge.errors import InvalidRequest
from sessions.models import KEY_LENGTH

SESSION_HEADERS = ("X-RWKV-Session-Id", "X-Session-Id")  # the second is the older name


def session_key(request: Request, named: str | None, longest: int = KEY_LENGTH) -> str:
    """The session_id of a request whose body names `named`, "" without one. Raises InvalidRequest."""
    name = next((name for name in SESSION_HEADERS if request.headers.get(name)), "")
    header = request.headers[name] if name else ""
    if header and named and header != named:
        raise InvalidRequest(f"session_id: the body and {name} differ", param="session_id")
    if len(header) > longest:
        raise InvalidRequest(f"{name}: expected at most {longest} characters", param="session_id")
    if "\0" in header:
        raise InvalidRequest(f"{name}: NUL is not allowed", param="session_id")
    return named or header
