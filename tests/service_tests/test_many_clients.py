"""64 clients at once on the tiny model, whose greedy texts show any token that went to the wrong one."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.service import Service
from tests.service_tests.clients import ENDLESS, Client, EngineView, Stream, connected

CLIENTS = 64
TOKENS = 24
LEAVING = range(0, 60, 3)  # these 20 disconnect after LEAVE_AFTER frames
LEAVE_AFTER = 4
PROMPTS = [f"Client {number}: {7919 * number}" for number in range(CLIENTS)]


@pytest.fixture(scope="module")
def alone(service: Service) -> list[str]:
    """What each prompt's greedy text is while nothing else runs."""

    async def ask() -> list[str]:
        async with connected(service) as client:
            return [await client.text(prompt, TOKENS) for prompt in PROMPTS]

    texts = asyncio.run(ask())
    assert len(set(texts)) == CLIENTS, "texts that are the same cannot show a mix-up"
    return texts


@dataclass
class Timeline:
    """Which client each frame belonged to, in the order in which they came."""

    clients: list[int] = field(default_factory=list)

    async def read(self, client: int, stream: Stream, frames: int = 0) -> None:
        """Read so many frames, or all."""
        async for _frame in stream.frames():
            self.clients.append(client)
            frames -= 1
            if not frames:
                return

    @property
    def most_open(self) -> int:
        """The most streams that were between their first and their last frame at once."""
        last = {client: position for position, client in enumerate(self.clients)}
        open_now: set[int] = set()
        most = 0
        for position, client in enumerate(self.clients):
            open_now.add(client)
            most = max(most, len(open_now))
            if last[client] == position:
                open_now.remove(client)
        return most

    @property
    def turns(self) -> int:
        """How often a frame came from another client than the one before."""
        return sum(one != other for one, other in zip(self.clients, self.clients[1:], strict=False))


async def test_all_complete_side_by_side_and_none_is_mixed_up(client: Client, alone: list[str]):
    timeline = Timeline()

    async def ask(number: int) -> Stream:
        async with client.stream(PROMPTS[number], TOKENS) as stream:
            await timeline.read(number, stream)
            return stream

    streams = await asyncio.gather(*map(ask, range(CLIENTS)))
    assert [stream.text for stream in streams] == alone
    assert all(stream.done and stream.finish_reason == "length" for stream in streams)
    print(f"{timeline.most_open} of {CLIENTS} streams were open at once; {timeline.turns} turns")
    assert timeline.most_open > CLIENTS / 4
    assert timeline.turns > 2 * CLIENTS  # one after another would be CLIENTS - 1


async def test_those_who_stay_are_not_disturbed_by_those_who_leave(
    client: Client, engine: EngineView, alone: list[str]
):
    async def stay(number: int) -> str:
        async with client.stream(PROMPTS[number], TOKENS) as stream:
            await stream.read_to_end()
            assert stream.done
            return stream.text

    async def leave(number: int) -> str:
        async with client.stream(PROMPTS[number], ENDLESS) as stream:
            await stream.read(LEAVE_AFTER)
            return stream.text

    texts = await asyncio.gather(*(leave(n) if n in LEAVING else stay(n) for n in range(CLIENTS)))
    await engine.wait_until_free()
    for number, text in enumerate(texts):
        if number in LEAVING:
            assert text
            # A frame may hold many tokens, and a text may end in half a letter.
            known = min(len(text), len(alone[number]) - 1)
            assert text[:known] == alone[number][:known]
        else:
            assert text == alone[number]
    await client.wait_until_idle()


async def test_a_slot_is_free_once_its_client_is_gone(client: Client, engine: EngineView):
    async with client.stream("A client that will not wait", ENDLESS) as stream:
        await stream.read(LEAVE_AFTER)
        assert engine.held_rows == 1
    print(f"the slot was free after {await engine.wait_until_free():.1f} ms")
    await client.wait_until_idle()
