"""What Redis has to do at one moment, as Lua scripts."""

from collections.abc import Sequence

from redis import asyncio as aioredis

from inference.bus import keys

SUBMISSION_TTL_SECONDS = 60  # how long a submission may be repeated without being made twice
NO_LIMIT = 2**53  # Lua's numbers are doubles

# KEYS: the stream, a key for this submission. ARGV: the group, the most rows that may wait, the messages.
# Returns the ids of the entries, or nothing if more would wait than may. Rows that an engine has taken stay in the
# stream as pending ones, so these are counted only when the stream is long.
_SUBMIT = """
local made = redis.call('LRANGE', KEYS[2], 0, -1)
if #made > 0 then return made end
local most, waiting = tonumber(ARGV[2]), redis.call('XLEN', KEYS[1])
if waiting + #ARGV - 2 > most then
    local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
    if not pending.err then waiting = waiting - pending[1] end
    if waiting + #ARGV - 2 > most then return {} end
end
for place = 3, #ARGV do
    made[place - 2] = redis.call('XADD', KEYS[1], '*', 'm', ARGV[place])
    redis.call('RPUSH', KEYS[2], made[place - 2])
end
redis.call('EXPIRE', KEYS[2], %d)
return made
"""

# KEYS: streams. ARGV: an entry of each. Returns 1 for those that are there: an entry itself may be large.
_EXIST = """
local found = {}
for place, stream in ipairs(KEYS) do
    found[place] = #redis.call('XRANGE', stream, ARGV[place], ARGV[place])
end
return found
"""


class Scripts:
    """The scripts on one connection; each method raises RedisError."""

    def __init__(self, connection: aioredis.Redis) -> None:
        self._submit = connection.register_script(_SUBMIT % SUBMISSION_TTL_SECONDS)
        self._exist = connection.register_script(_EXIST)

    async def submit(self, stream: str, name: str, messages: Sequence[bytes], *, max_waiting: int) -> list[bytes]:
        """Add all messages or none: [] if more than `max_waiting` would wait, else the ids of their entries.

        `name` is of this submission alone. Made again, because its answer got lost, it returns the same ids.
        """
        made: list[bytes] = await self._submit(
            keys=[stream, keys.submission(name)], args=[keys.GROUP, max_waiting, *messages]
        )
        return made

    async def exist(self, entries: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Whether each (stream, entry) is there. An entry that is not known, b"", is not."""
        streams, ids = [stream for stream, _ in entries], [entry or b"0-0" for _, entry in entries]
        return [bool(found) for found in await self._exist(keys=streams, args=ids)]
