"""From a profile to what each worker has to do. Pure: the same profile and seed give the same plan."""

import os
from collections.abc import Sequence
from math import ceil, inf
from random import Random

import msgspec

from benchmarks.loadgen import datasets, schedule
from benchmarks.loadgen.datasets.conversations import Conversation
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.dialogue import Dialogue
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.messages import Scheduled, Task, User
from benchmarks.loadgen.options import CONVERSATIONS, DEFAULT_REQUESTS, USER_STAGGER_SECONDS, Profile, parse_stages
from benchmarks.loadgen.records import RateChange
from benchmarks.loadgen.target import Target

STREAMS_PER_WORKER = 128  # that one process reads without adding a millisecond of its own
READY_TEXT = "Are you ready?\nYes.\nNo."  # in lines, which a reranker takes for documents
GUESSED_ANSWER_SECONDS = 10.0  # what an open loop's streams are estimated from, with its rate


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """`times` are those of an open loop; a closed loop has users instead. `ramp_seconds` is how long either ramps."""

    items: list[Prompt] | list[Conversation]
    times: list[float]
    users: list[User]
    warmups: list[Prompt]
    rate_changes: list[RateChange]
    ramp_seconds: float
    requests: int | None  # how many will be sent if nothing ends the load before; None: until its duration is over


def first_prompt(profile: Profile, plan: Plan) -> Prompt:
    """What the load begins with, to see whether the back end can carry it."""
    first = plan.items[0]
    return first if isinstance(first, Prompt) else Dialogue(first, "", stateful=profile.stateful).ask()


def ready_prompt(first: Prompt, run_id: str) -> Prompt:
    """One of the same kind as the load's prompts that is none of them, so that no cache knows what is measured.

    Messages that are more than text, such as an upload, have no other of their kind: they are the load's own.
    """
    session = f"{run_id}-ready" if first.session is not None else None
    if first.messages is None:
        return Prompt(text=READY_TEXT, output_tokens=1, session=session)
    if all(isinstance(message.get("content"), str) for message in first.messages):
        return Prompt(messages=[{"role": "user", "content": READY_TEXT}], output_tokens=1, session=session)
    return first


def make_plan(profile: Profile) -> Plan:
    """Load the data set and draw the schedule. Raises BadOption."""
    if profile.users is not None:
        return _plan_users(profile, profile.users)
    return _plan_open_loop(profile)


def make_tasks(profile: Profile, plan: Plan, target: Target, run_id: str) -> list[Task]:
    """The plan dealt out to workers, in turn. Raises BadOption."""
    workers = profile.workers or _workers_needed(profile, plan)
    workers = min(workers, len(plan.users) or len(plan.times) or 1, profile.max_concurrency or workers)
    return [_task(profile, plan, target, run_id, number, workers) for number in range(workers)]


def _plan_open_loop(profile: Profile) -> Plan:
    """The schedule comes first where it tells how many prompts are needed, and last where the prompts bring it."""
    self_timed = profile.dataset_name == "timed_trace" if profile.self_timed is None else profile.self_timed
    if self_timed:
        asked = profile.num_prompts or DEFAULT_REQUESTS
        prompts = datasets.load_prompts(profile, asked + profile.num_warmups)
        if any(prompt.timestamp is None for prompt in prompts):
            raise BadOption(f"--self-timed: the data set {profile.dataset_name} has no times")
        prompts, warmups = _split(prompts, min(asked, len(prompts)))
        times = schedule.trace([prompt.timestamp or 0.0 for prompt in prompts], profile.time_multiplier)
        times = [time for time in times if not profile.duration or time < profile.duration]
        changes, ramp = list[RateChange](), 0.0
    else:
        times, changes, ramp = _draw_times(profile)
        if not times:
            raise BadOption("--duration or --stages: in so short a time the schedule has no request")
        prompts, warmups = _split(datasets.load_prompts(profile, len(times) + profile.num_warmups), len(times))
    requests = min(len(times), len(prompts))
    return Plan(
        items=prompts[:requests],
        times=times[:requests],
        users=[],
        warmups=warmups,
        rate_changes=changes,
        ramp_seconds=ramp,
        requests=requests,
    )


def _draw_times(profile: Profile) -> tuple[list[float], list[RateChange], float]:
    """Times, rate changes, and the seconds of the ramp if something follows it."""
    draw = Random(f"{profile.seed}/arrivals")
    until = profile.duration or inf
    count = profile.num_prompts or (None if profile.duration or profile.stages else DEFAULT_REQUESTS)
    if profile.ramp_up_strategy and profile.ramp_up_by == "index":
        start, end = profile.ramp_up_start_rps or 0.0, profile.ramp_up_end_rps or 0.0
        rates = schedule.rates_by_index(profile.ramp_up_strategy, start, end, count or 0)
        times = schedule.arrivals_by_index(rates, profile.burstiness, draw)
        return [time for time in times if time < until], schedule.rate_changes(times, lambda n, _: rates[n]), 0.0
    if profile.request_rate == inf and not profile.ramp_up_strategy and not profile.stages:
        return [0.0] * (count or 0), [], 0.0
    curve, ramp = _curve(profile, count)
    times = schedule.arrivals(curve, profile.burstiness, draw, count=count, until=until)
    return times, schedule.rate_changes(times, lambda _, time: curve.rate(time)), ramp


def _curve(profile: Profile, count: int | None) -> tuple[schedule.RateCurve, float]:
    if profile.stages:
        return schedule.Stages(parse_stages(profile.stages)), 0.0
    if profile.ramp_up_strategy:
        start, end = profile.ramp_up_start_rps or 0.0, profile.ramp_up_end_rps or 0.0
        seconds = profile.ramp_up_seconds
        if seconds is None:
            whole = profile.duration if count is None else inf
            by_count = inf if count is None else schedule.ramp_seconds(profile.ramp_up_strategy, start, end, count)
            return schedule.ramp(profile.ramp_up_strategy, start, end, min(whole, by_count)), 0.0
        return schedule.ramp(profile.ramp_up_strategy, start, end, seconds), seconds
    if profile.sinus_amplitude:
        return schedule.Sinus(profile.request_rate, profile.sinus_amplitude, profile.sinus_period), 0.0
    return schedule.Constant(profile.request_rate), 0.0


def _plan_users(profile: Profile, users: int) -> Plan:
    ramp = USER_STAGGER_SECONDS * users if profile.ramp_up_time is None else profile.ramp_up_time
    starts = schedule.user_starts(users, ramp)
    items: list[Prompt] | list[Conversation]
    if profile.dataset_name in CONVERSATIONS:
        limit = profile.num_prompts
        items, warmups = datasets.load_conversations(profile), datasets.load_plain_prompts(profile, profile.num_warmups)
        repeats = bool(limit or profile.duration)
    else:
        limit = profile.num_prompts or (None if profile.duration else DEFAULT_REQUESTS)
        wanted = limit or DEFAULT_REQUESTS
        items, warmups = _split(datasets.load_prompts(profile, wanted + profile.num_warmups), wanted)
        repeats = limit is None or profile.allow_repetitive_requests
    active = profile.max_active_conversations or users
    planned = [
        User(
            number=user,
            start=starts[user],
            order=_order(profile, user, users, len(items), repeats),
            requests=None if limit is None else _share(limit, user, users),
            repeats=repeats,
            active_conversations=max(1, _share(active, user, users)),
        )
        for user in range(users)
    ]
    return Plan(
        items=items,
        times=[],
        users=planned,
        warmups=warmups,
        rate_changes=[],
        ramp_seconds=starts[-1],
        requests=_count_requests(planned, items),
    )


def _order(profile: Profile, user: int, users: int, size: int, repeats: bool) -> list[int]:
    """The places that a user goes through: dealt out like cards, so that each is used once, or all in an own order.

    The own order depends on the seed and the user alone, whatever the others do and however many there are.
    """
    if profile.allow_repetitive_requests:
        places = list(range(size))
        Random(f"{profile.seed}/user/{user}").shuffle(places)
        return places
    dealt = list(range(user, size, users))
    return dealt or ([user % size] if repeats else [])


def _count_requests(users: Sequence[User], items: Sequence[Prompt] | Sequence[Conversation]) -> int | None:
    """How many they will send: None if only time ends them."""
    sizes = [len(item.turns) if isinstance(item, Conversation) else 1 for item in items]
    total = 0
    for user in users:
        if user.repeats and user.requests is None:
            return None
        own = inf if user.repeats else sum(sizes[place] for place in user.order)
        total += int(min(own, inf if user.requests is None else user.requests))
    return total


def _split(prompts: list[Prompt], count: int) -> tuple[list[Prompt], list[Prompt]]:
    """The load's prompts, and those behind them for the warm-up: no warm-up fills a cache with what is measured."""
    return prompts[:count], prompts[count:]


def _share(total: int, part: int, parts: int) -> int:
    return total // parts + (part < total % parts)


def _task(profile: Profile, plan: Plan, target: Target, run_id: str, number: int, workers: int) -> Task:
    talks = profile.dataset_name in CONVERSATIONS
    items = plan.items if plan.users else []
    limit = profile.max_concurrency
    scheduled = [
        Scheduled(index, time, prompt)
        for index, (time, prompt) in enumerate(zip(plan.times, plan.items, strict=False))
        if index % workers == number and isinstance(prompt, Prompt)
    ]
    return Task(
        worker=number,
        run_id=run_id,
        target=target,
        seed=profile.seed,
        warmups=plan.warmups if number == 0 else [],
        warmup_concurrency=profile.max_concurrency or profile.users or 1,
        scheduled=scheduled,
        max_concurrency=None if limit is None else _share(limit, number, workers),
        users=plan.users[number::workers],
        all_users=len(plan.users),
        prompts=[] if talks else [item for item in items if isinstance(item, Prompt)],
        conversations=[item for item in items if isinstance(item, Conversation)],
        conversation_sampling=profile.conversation_sampling,
        stateful=profile.stateful,
        think_time=profile.think_time,
        max_retries=profile.max_retries,
        deadline=profile.duration or None,
        grace=profile.grace,
        cancel_fraction=profile.cancel_fraction,
        cancel_after=profile.cancel_after,
        keep_text=profile.keep_text,
        tokenizer=datasets.tokenizer_name(profile),
    )


def _workers_needed(profile: Profile, plan: Plan) -> int:
    """One for each STREAMS_PER_WORKER, as far as there are cores beside the one that the supervisor may need."""
    streams = profile.max_concurrency or len(plan.users)
    if not streams:
        rate = len(plan.times) / max(plan.times[-1], 1.0)
        streams = min(len(plan.times), ceil(rate * GUESSED_ANSWER_SECONDS))
    return max(1, min(ceil(streams / STREAMS_PER_WORKER), (os.cpu_count() or 1) - 1))
