"""Names of everything the service keeps in Redis, and the constants of the protocol.

    rwkv:req:<model>           stream of interactive requests, read by the consumer group GROUP
    rwkv:req:<model>:offline   the same for work nobody waits for
    rwkv:own:<engine>          stream of requests for one engine alone, which has the states that they need
    rwkv:home:<session>        the engine that has a session's newest state, by its primary key
    rwkv:cancel                stream of what every engine reads: cancellations, models and states to load or forget
    rwkv:sub:<submission>      list of the entries that one submission made, for as long as it may be repeated
    rwkv:rep:<web>             stream of replies to one web process, one entry an engine step
    rwkv:web:<web>             heartbeat of a web process
    rwkv:engine:<engine>       heartbeat of an engine: an EngineStatus
    rwkv:engines               set of the engines' names
    rwkv:lease:<owner>:<key>   who writes to a session now
    rwkv:places:<owner>        sorted set of a caller's requests under way, by the time at which they no longer count
    rwkv:orders                channel of orders about running requests, heard by every web process
    rwkv:answers:<order>       list of the answers to one order
    rwkv:paused:<owner>:<request>   a paused request
    rwkv:resuming:<owner>:<request>   who resumes it now
    rwkv:paused                sorted set of the paused requests' <owner>:<request>, by the time they are forgotten
    rwkv:samples               stream of samples of every engine, of the last hour
    rwkv:errors                list of the last errors, newest first

The entry of a request stays in its stream until the request has ended. That is the invariant by
which both sides notice a loss: a web process whose row is silent looks its entry up and submits the
row again if it is gone; an engine that finds entries of a dead one reports their rows as lost.
"""

GROUP = "engines"
CANCEL = "rwkv:cancel"
ENGINES = "rwkv:engines"
ORDERS = "rwkv:orders"
PAUSED = "rwkv:paused"
SAMPLES = "rwkv:samples"
ERRORS = "rwkv:errors"

HEARTBEAT_SECONDS = 1.0
ENGINE_TTL_SECONDS = 4  # an engine without a heartbeat for this long is dead
WEB_TTL_SECONDS = 10
REPLY_STREAM_STEPS = 10_000  # replies a web process may lag behind
REPLY_TTL_SECONDS = 120
CANCEL_STREAM_LENGTH = 10_000
ANSWER_TTL_SECONDS = 60
PAUSED_TTL_SECONDS = 24 * 3600
HOME_TTL_SECONDS = 3600
OWN_STREAM_TTL_SECONDS = 60  # of an engine that is gone
_OWN = "rwkv:own:"


def requests(model: str, *, offline: bool = False) -> str:
    return f"rwkv:req:{model}:offline" if offline else f"rwkv:req:{model}"


def own(engine: str) -> str:
    return f"{_OWN}{engine}"


def is_own(stream: str) -> bool:
    """Whether it is the stream of one engine."""
    return stream.startswith(_OWN)


def submission(name: str) -> str:
    return f"rwkv:sub:{name}"


def home(session: int) -> str:
    return f"rwkv:home:{session}"


def replies(web: str) -> str:
    return f"rwkv:rep:{web}"


def web(web: str) -> str:
    return f"rwkv:web:{web}"


def lease(owner: str, session: str) -> str:
    return f"rwkv:lease:{owner}:{session}"


def places(owner: str) -> str:
    return f"rwkv:places:{owner}"


def engine(engine: str) -> str:
    return f"rwkv:engine:{engine}"


def paused(name: str) -> str:
    return f"rwkv:paused:{name}"


def resuming(name: str) -> str:
    return f"rwkv:resuming:{name}"
