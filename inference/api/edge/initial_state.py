"""Which uploaded state a request wants to begin with: a field of its body or a header, the same for every route."""

from rest_framework.request import Request

from inference.api.edge.database import in_thread
from inference.api.edge.errors import InvalidRequest
from sessions.initial_states import find_state
from sessions.models import InitialState

STATE_HEADERS = ("X-RWKV-State-Id", "X-State-Id")  # the second is the older name
STATE_ROUTES = "/v1/state/"  # where a state_id is what the route is about


async def read_initial_state(request: Request) -> InitialState | None:
    """Raises InvalidRequest for a state that the caller has not got."""
    key = "" if request.path.startswith(STATE_ROUTES) else state_key(request)
    if not key:
        return None
    state = await in_thread(find_state, request.user.name if request.user else "", key)
    if state is None:
        raise InvalidRequest(f"uploaded state not found: {key:.200}", param="state_id")
    return state


def state_key(request: Request) -> str:
    """The state_id of a request, "" without one. Raises InvalidRequest when body and header differ."""
    named = request.payload.field("state_id")
    if named is not None and not isinstance(named, str):
        raise InvalidRequest("state_id: expected a string", param="state_id")
    header = next((request.headers[name] for name in STATE_HEADERS if request.headers.get(name)), "")
    if header and named and header != named:
        raise InvalidRequest(f"state_id: the body and {STATE_HEADERS[0]} differ", param="state_id")
    return named or header
