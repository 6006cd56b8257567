"""The two ways a worker loads a server: by the clock (open loop), or by users who wait for their answers (closed)."""

import asyncio
from collections.abc import Iterator
from itertools import count, cycle, islice
from random import Random

from benchmarks.loadgen.dialogue import Dialogue
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.messages import Task, User
from benchmarks.loadgen.reading import read_exchange
from benchmarks.loadgen.records import ErrorClass, Phase, RequestRecord
from benchmarks.loadgen.sender import Sender, Sent


async def run_load(sender: Sender, task: Task) -> None:
    """Send all of the task, and wait for the last answer."""
    async with asyncio.TaskGroup() as group:
        for user in task.users:
            loop = _talk if task.conversations else _ask
            group.create_task(loop(sender, task, user))
        for request in task.scheduled:
            if not await sender.wait_until(request.time):
                break
            group.create_task(sender.perform(request.prompt, request.index, intended=request.time))


async def warm_up(sender: Sender, task: Task) -> None:
    """Send the task's warm-up prompts, as many at once as the load itself has. Their indices are below 0."""
    slots = asyncio.Semaphore(task.warmup_concurrency)

    async def send(prompt: Prompt, index: int) -> None:
        async with slots:
            await sender.perform(prompt, index, phase=Phase.WARMUP)

    async with asyncio.TaskGroup() as group:
        for index, prompt in enumerate(task.warmups, -len(task.warmups)):
            group.create_task(send(prompt, index))


async def _ask(sender: Sender, task: Task, user: User) -> None:
    """One user with single prompts."""
    if not await sender.wait_until(user.start):
        return
    draw = Random(f"{task.seed}/think/{user.number}")
    for place, index in zip(_places(user), _indices(task, user), strict=False):
        if not sender.may_send:
            return
        await sender.perform(task.prompts[place], index, user=user.number)
        await _think(sender, task, draw)


async def _talk(sender: Sender, task: Task, user: User) -> None:
    """One user with conversations, of which some are open at once and take turns."""
    if not await sender.wait_until(user.start):
        return
    draw = Random(f"{task.seed}/think/{user.number}")
    waiting = (
        # A session of its own, for every user and every time that a conversation begins again.
        Dialogue(task.conversations[place], f"{task.run_id}-{user.number}-{number}", stateful=task.stateful)
        for number, place in enumerate(_places(user))
    )
    open_ones = list(islice(waiting, user.active_conversations))
    indices = _indices(task, user)
    for index in indices:
        if not (open_ones and sender.may_send):
            return
        place = draw.randrange(len(open_ones)) if task.conversation_sampling == "random" else 0
        dialogue = open_ones.pop(place)
        prompt = dialogue.ask()
        sent = await sender.perform(prompt, index, user=user.number)
        for attempt in range(task.max_retries):
            if not await _may_retry(sender, sent, attempt, draw) or (again := next(indices, None)) is None:
                break
            sent = await sender.perform(prompt, again, user=user.number)
        goes_on = _take_in(sender, dialogue, sent)
        open_ones.extend([dialogue] if goes_on else islice(waiting, 1))
        await _think(sender, task, draw)


async def _may_retry(sender: Sender, sent: Sent, attempt: int, draw: Random) -> bool:
    """Wait before another attempt, and longer before each; False where the request did not fail, or the load ended."""
    if sent.exchange is None or not sent.exchange.error:
        return False
    return await sender.wait_until(sender.clock() + 2**attempt * draw.uniform(0.9, 1.1))


def _take_in(sender: Sender, dialogue: Dialogue, sent: Sent) -> bool:
    """Whether the conversation goes on: not without an answer, which every later turn would lack."""
    if dialogue.is_over or sent.exchange is None or sent.exchange.error:
        return False
    if dialogue.needs_answers:
        # Read now, between two requests of the same user, who would take longer.
        answer = RequestRecord(index=sent.record.index)
        read_exchange(sender.backend, sent.prompt, sent.exchange, answer, keep_text=True)
        if answer.error is not ErrorClass.NONE:
            return False
        dialogue.hear(answer.text or "")
    return True


async def _think(sender: Sender, task: Task, draw: Random) -> None:
    if task.think_time:
        await sender.wait_until(sender.clock() + draw.expovariate(1 / task.think_time))


def _places(user: User) -> Iterator[int]:
    return cycle(user.order) if user.repeats else iter(user.order)


def _indices(task: Task, user: User) -> Iterator[int]:
    """Numbers that no other user has; as many as the user may send."""
    indices = count(user.number, task.all_users)
    return indices if user.requests is None else islice(indices, user.requests)
