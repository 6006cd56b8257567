"""Data sets from small files of each form: what becomes of a row, and that a seed decides everything."""

import json
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import pytest

from benchmarks.loadgen import datasets
from benchmarks.loadgen.datasets.distributions import sampler
from benchmarks.loadgen.datasets.source import Source
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.exchange import Prompt
from benchmarks.loadgen.options import checked_profile
from benchmarks.loadgen.vocabulary import NoVocabulary, get_vocabulary

COUNT = get_vocabulary("rwkv").count


def load(count: int, **values: Any) -> list[Prompt]:
    return datasets.load_prompts(checked_profile(values), count)


def texts(prompts: list[Prompt]) -> list[str]:
    return [prompt.text or "" for prompt in prompts]


@pytest.fixture
def file(tmp_path: Path):
    """Write rows, or text, to a file of this name, and return its path."""

    def write(name: str, content: Any) -> str:
        path = tmp_path / name
        if not isinstance(content, str):
            lines = map(json.dumps, content)
            content = "\n".join(lines) if path.suffix == ".jsonl" else json.dumps(content)
        path.write_text(content, encoding="utf-8")
        return str(path)

    return write


def test_random_prompts_have_exactly_the_tokens_asked_for():
    prompts = load(20, random_input_len=50, random_output_len=8, random_range_ratio=0.5, random_prefix_len=10)
    assert all(COUNT(prompt.text or "") == prompt.prompt_tokens for prompt in prompts)
    assert all(35 <= (prompt.prompt_tokens or 0) <= 85 and 4 <= (prompt.output_tokens or 0) <= 12 for prompt in prompts)
    assert len({prompt.prompt_tokens for prompt in prompts}) > 5
    assert len(set(texts(prompts))) == 20
    words = {" ".join(text.split()[:10]) for text in texts(prompts)}
    assert len(words) == 1  # the common prefix


def test_a_seed_decides_the_prompts():
    assert load(5, seed=1) == load(5, seed=1) != load(5, seed=2)


def test_without_a_tokenizer_lengths_are_not_passed_off_as_counted():
    prompt = load(1, tokenizer="none", random_input_len=100)[0]
    assert prompt.prompt_tokens is None
    assert len(prompt.text or "") == 400


def test_prefixes_are_shared_evenly():
    lengths = {"prefix_repetition_prefix_len": 8, "prefix_repetition_suffix_len": 4}
    prompts = load(12, dataset_name="prefix_repetition", prefix_repetition_num_prefixes=3, **lengths)
    prefixes = [tuple(text.split()[:8]) for text in texts(prompts)]
    assert sorted(prefixes.count(prefix) for prefix in set(prefixes)) == [4, 4, 4]
    assert {prompt.prompt_tokens for prompt in prompts} == {12}


def sharegpt(*conversations: list[str]) -> list[dict[str, Any]]:
    return [{"conversations": [{"from": "human", "value": text} for text in one]} for one in conversations]


def test_sharegpt_takes_first_turns_and_leaves_out_the_short_and_the_long(file):
    good = ["Tell me about rivers and hills, please", "Rivers run downhill and hills stand still"]
    rows = sharegpt(
        good, ["Hi", "Hello there, how do you do"], ["Alone, without an answer at all"], ["long " * 1500, "x y z a b"]
    )
    prompts = load(1, dataset_name="sharegpt", dataset_path=file("s.json", rows))
    assert texts(prompts) == [good[0]]
    assert prompts[0].output_tokens == COUNT(good[1])
    assert load(1, dataset_name="sharegpt", dataset_path=file("s.json", rows), output_len=7)[0].output_tokens == 7


def test_several_turns_of_sharegpt_make_one_prompt(file):
    turns = ["the first question is this", "the first answer is that", "the second question", "and the second answer"]
    prompts = load(1, dataset_name="sharegpt", dataset_path=file("s.json", sharegpt(turns)), num_turns=2)
    assert texts(prompts) == ["\n".join(turns[:3])]
    assert prompts[0].output_tokens == COUNT(turns[3])


def test_too_few_prompts_are_repeated_unless_that_is_not_wanted(file):
    path = file("c.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    repeated = texts(load(6, dataset_name="custom", dataset_path=path))
    assert len(repeated) == 6 and set(repeated) == {"one", "two"}
    assert len(load(6, dataset_name="custom", dataset_path=path, oversample=False)) == 2


def test_rows_are_shuffled_by_the_seed_or_not_at_all(file):
    path = file("c.jsonl", [{"prompt": f"number {n}"} for n in range(30)])
    kept = texts(load(30, dataset_name="custom", dataset_path=path, disable_shuffle=True))
    assert kept == [f"number {n}" for n in range(30)]
    shuffled = texts(load(30, dataset_name="custom", dataset_path=path))
    assert shuffled != kept and sorted(shuffled) == sorted(kept)


def test_custom_rows_bring_messages_suffixes_and_lengths(file):
    messages = [{"role": "user", "content": "hello"}]
    rows = [{"prompt": "a", "suffix": "b", "output_tokens": 3}, {"messages": messages, "output_tokens": 4}]
    path = file("c.jsonl", rows)
    first, second = load(2, dataset_name="custom", dataset_path=path, custom_output_len=-1, disable_shuffle=True)
    assert (first.text, first.suffix, first.output_tokens) == ("a", "b", 3)
    assert (second.messages, second.output_tokens) == (messages, 4)


def test_only_a_line_feed_ends_a_line_of_json(file):
    text = "one\u2028two\x85three"
    path = file("rows.jsonl", json.dumps({"prompt": text}, ensure_ascii=False) + "\r\n\n")
    assert texts(load(1, dataset_name="custom", dataset_path=path)) == [text]


def test_rows_of_the_hub_without_the_prompts_field_are_left_out(file):
    path = file("rows.jsonl", [{"prompt": "Once upon"}, {"title": "none"}, {"prompt": None}])
    assert texts(load(3, dataset_name="hf", dataset_path=path, oversample=False)) == ["Once upon"]


def test_a_batch_takes_so_many_prompts_of_the_data_set(file):
    rows = [{"prompt": f"number {n}", "output_tokens": n + 1} for n in range(5)]
    values = {"dataset_name": "custom", "dataset_path": file("c.jsonl", rows), "disable_shuffle": True}
    first, second = load(2, **values, batch_size=2, custom_output_len=-1)
    assert [texts(one.batch or []) for one in (first, second)] == [["number 0", "number 1"], ["number 2", "number 3"]]
    assert (first.text, first.output_tokens, first.prompt_tokens) == (None, 2, 2 * COUNT("number 0"))
    assert len(load(9, **values, batch_size=2, oversample=False)) == 2  # the fifth fills none
    assert all(len(one.batch or []) == 2 for one in load(9, **values, batch_size=2))
    with pytest.raises(BadOption, match="--batch-size: the data set holds 5 prompts"):
        load(1, **values, batch_size=6, oversample=False)


def test_a_system_prompt_goes_before_every_prompt(file):
    rows = [{"prompt": "a"}, {"messages": [{"role": "user", "content": "b"}]}]
    system = file("system.txt", "Be brief. ")
    path = file("c.jsonl", rows)
    first, second = load(2, dataset_name="custom", dataset_path=path, disable_shuffle=True, system_prompt_path=system)
    assert first.text == "Be brief. a"
    assert second.messages == [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "b"}]


def test_sonnet_prompts_begin_alike_and_keep_their_length():
    prompts = load(8, dataset_name="sonnet", sonnet_input_len=300, sonnet_prefix_len=100)
    assert all(260 < (prompt.prompt_tokens or 0) <= 300 for prompt in prompts)
    assert len({text[:300] for text in texts(prompts)}) == 1
    assert len(set(texts(prompts))) == 8


def test_messages_in_lines_are_read_like_sharegpt(file):
    turns = ["the first question is this", "the first answer is that", "the second question", "and the second answer"]
    rows = [{"messages": [{"role": "any", "content": text} for text in turns]}]
    prompts = load(1, dataset_name="xiaomi", dataset_path=file("x.jsonl", rows), num_turns=2)
    assert texts(prompts) == ["\n".join(turns[:3])]
    assert prompts[0].output_tokens == COUNT(turns[3])


def test_spec_bench_asks_the_first_turn(file):
    path = file("q.jsonl", [{"question_id": 1, "category": "math", "turns": ["first", "second"], "reference": ["x"]}])
    assert load(1, dataset_name="spec_bench", dataset_path=path)[0].output_tokens == 256
    prompt = load(1, dataset_name="spec_bench", dataset_path=path, hf_output_len=9)[0]
    assert (prompt.text, prompt.output_tokens) == ("first", 9)


def test_lengths_vary_on_either_side_alone():
    prompts = load(20, random_input_len=50, random_output_len=8, random_range_ratio={"output": 0.5})
    assert {prompt.prompt_tokens for prompt in prompts} == {50}
    assert len({prompt.output_tokens for prompt in prompts}) > 2


class CountingVocabulary(NoVocabulary):
    """How many texts were made, and how many were counted."""

    made = counted = 0

    def words(self, count: int, draw: Random) -> str:
        self.made += 1
        return super().words(count, draw)

    def count(self, text: str) -> int:
        self.counted += 1
        return super().count(text)


def test_no_text_is_made_for_rows_that_are_not_sent(file):
    burst = BURST + "".join(f"{n},GPT-4,{n + 1},5,{n + 6},x\n" for n in range(50))
    trace = [{"timestamp": n, "input_length": 4, "output_length": 3} for n in range(50)]
    paths = {
        "burstgpt": file("b.csv", burst),
        "timed_trace": file("t.jsonl", trace),
        "custom": file("c.jsonl", [{"prompt": f"number {n}"} for n in range(50)]),
    }
    for name, path in paths.items():
        vocabulary = CountingVocabulary()
        profile = checked_profile({"dataset_name": name, "dataset_path": path})
        prompts = datasets.DATASETS[name](Source(profile, 3, Random(1), vocabulary))
        assert len(prompts) == 3
        assert vocabulary.made + vocabulary.counted == 3


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_burstgpt_keeps_the_lengths_of_gpt_4_and_its_times_on_demand(file):
    rows = "5,ChatGPT,9,9,18,x\n7.5,GPT-4,20,30,50,x\n6,GPT-4,10,0,10,x\n6.5,GPT-4,11,12,23,x\n"
    path = file("b.csv", BURST + rows)
    prompts = load(2, dataset_name="burstgpt", dataset_path=path, self_timed=True)
    assert [(p.timestamp, p.prompt_tokens, p.output_tokens) for p in prompts] == [(6.5, 11, 12), (7.5, 20, 30)]
    assert COUNT(prompts[1].text or "") == 20
    assert {p.prompt_tokens for p in load(9, dataset_name="burstgpt", dataset_path=path)} == {11, 20}


def test_equal_hash_ids_of_a_trace_are_equal_text(file):
    rows = [
        {"timestamp": 2000, "input_length": 40, "output_length": 3, "hash_ids": [1, 3]},
        {"timestamp": 500, "input_length": 40, "output_length": 2, "hash_ids": [1, 2]},
    ]
    early, late = load(2, dataset_name="timed_trace", dataset_path=file("t.jsonl", rows))
    assert [prompt.timestamp for prompt in (early, late)] == [0.5, 2.0]
    assert [COUNT(text) for text in texts([early, late])] == [40, 40]
    first, second = (text.split() for text in texts([early, late]))
    assert first[:16] == second[:16] and first[16:32] != second[16:32]


def test_a_trace_may_name_its_fields_and_the_unit_of_its_times(file):
    rows = [{"at": 3, "in": 7, "out": 2, "blocks": [5]}, {"at": 1, "in": 6, "out": 1, "blocks": [5]}]
    names = {"timestamp": "at", "input_length": "in", "output_length": "out", "hash_ids": "blocks"}
    labels = {f"timed_trace_label_{name}": label for name, label in names.items()}
    values = {"timed_trace_sec_multiplier": 1, "timed_trace_hash_chunk": 4, **labels}
    early, late = load(2, dataset_name="timed_trace", dataset_path=file("t.jsonl", rows), **values)
    assert [(one.timestamp, one.prompt_tokens, one.output_tokens) for one in (early, late)] == [(1, 6, 1), (3, 7, 2)]
    first, second = (text.split() for text in texts([early, late]))
    assert first[:4] == second[:4] and first[4:] != second[4:6]


@pytest.mark.parametrize(
    ("name", "content", "text", "tokens"),
    [
        ("a.jsonl", [{"question": "why", "answer": "because it is so"}], "why", 4),
        ("a.json", [{"instruction": "add", "input": "1 2", "output": ""}], "add\n1 2", 256),
        ("a.csv", "problem,solution\nhow many,four\n", "how many", 1),
        ("a.json", [{"turns": ["first", "second"]}], "first", 256),
    ],
)
def test_local_files_of_the_hub_are_known_by_their_columns(file, name: str, content: Any, text: str, tokens: int):
    prompt = load(1, dataset_name="hf", dataset_path=file(name, content))[0]
    assert (prompt.text, prompt.output_tokens) == (text, tokens)


def test_messages_are_cut_behind_the_last_turn_of_the_user(file):
    said = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user", "assistant")]
    prompt = load(1, dataset_name="hf", dataset_path=file("m.jsonl", [{"messages": said}]))[0]
    assert prompt.messages == said[:4]


def conversations(**values: Any):
    return datasets.load_conversations(checked_profile({"users": 1, **values}))


def test_conversations_of_a_file_keep_their_turns_and_the_lengths_of_answers(file):
    messages = [("system", "Be kind"), ("user", "one"), ("assistant", "a b c"), ("user", "two"), ("assistant", "d")]
    rows = [{"id": "x", "messages": [{"role": role, "content": text} for role, text in messages]}]
    found = conversations(dataset_name="conversations", dataset_path=file("c.json", rows))[0]
    assert (found.id, found.system) == ("x", "Be kind")
    assert [(turn.text, turn.output_tokens) for turn in found.turns] == [("one", COUNT("a b c")), ("two", 1)]
    cut = conversations(dataset_name="conversations", dataset_path=file("c.json", rows), max_turns=1)[0]
    assert len(cut.turns) == 1


@pytest.mark.parametrize(
    ("most", "least", "expected"),
    [
        (0, -1, [(3, None), (1, None)]),
        (2, 0, [(2, 2), (2, 1)]),
        (-1, 5, [(None, 5), (None, 5)]),
        (0, 2, [(3, 2), (1, 1)]),
    ],
)
def test_lengths_of_answers_in_conversations_have_limits(file, most: int, least: int, expected: list[Any]):
    messages = [("user", "one"), ("assistant", "a b c"), ("user", "two"), ("assistant", "d")]
    rows = [{"id": "x", "messages": [{"role": role, "content": text} for role, text in messages]}]
    values = {"dataset_name": "conversations", "dataset_path": file("c.json", rows)}
    [found] = conversations(**values, limit_max_tokens=most, limit_min_tokens=least)
    assert [(turn.output_tokens, turn.min_output_tokens) for turn in found.turns] == expected


def test_a_generators_file_makes_conversations(file):
    spec = {
        "filetype": "generate_conversations",
        "num_conversations": 6,
        "prompt_input": {
            "num_turns": {"distribution": "uniform", "min": 4, "max": 8},
            "common_prefix_num_tokens": 12,
            "num_tokens": {"distribution": "constant", "value": 5},
        },
        "prompt_output": {"num_tokens": {"distribution": "zipf", "alpha": 1.2, "max": 9}},
    }
    made = conversations(dataset_name="conversations", dataset_path=file("g.json", spec))
    assert len(made) == 6
    assert all(2 <= len(one.turns) <= 4 for one in made)
    assert {COUNT(one.turns[0].text) for one in made} == {17}
    assert {COUNT(turn.text) for one in made for turn in one.turns[1:]} == {5}
    assert all(1 <= (turn.output_tokens or 0) <= 9 for one in made for turn in one.turns)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"distribution": "uniform", "min": 10, "max": 30}, 20),
        ({"distribution": "lognormal", "average": 200}, 200),
        ({"distribution": "poisson", "alpha": 900}, 900),
        ({"distribution": "constant", "value": 4}, 4),
        (7, 7),
    ],
)
def test_distributions_have_their_mean(spec: Any, expected: float):
    sample, draw = sampler("tokens", spec), Random(5)
    assert mean(sample(draw) for _ in range(3000)) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("values", "content", "message"),
    [
        ({"dataset_name": "sharegpt"}, None, "--dataset-path: --dataset-name sharegpt needs a file"),
        ({"dataset_name": "custom"}, '{"prompt": 1}\n', "row 1: prompt is no text"),
        ({"dataset_name": "custom"}, '{"prompt": "a"}\n{', "line 2"),
        ({"dataset_name": "custom"}, '["a"]\n', "does not hold one JSON object for each row"),
        ({"dataset_name": "custom"}, '{"text": "a"}\n', "row 1 needs either prompt or messages"),
        ({"dataset_name": "custom", "custom_output_len": -1}, '{"prompt": "a"}', "row 1 has no output_tokens"),
        ({"dataset_name": "hf"}, '{"a": 1, "b": 2}', "have a, b, but not one of prompt"),
        ({"dataset_name": "timed_trace"}, '{"timestamp": 1}', "row 1: input_length is no number"),
        ({"dataset_name": "sharegpt"}, "", "holds no usable prompt"),
    ],
)
def test_a_bad_file_is_named_with_its_place(file, values: dict[str, Any], content: str | None, message: str):
    if content is not None:
        values = {**values, "dataset_path": file("bad.jsonl", content)}
    with pytest.raises(BadOption) as refused:
        load(1, **values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("hf", f"prompt\n{'a' * 200_000}\n", "field larger than field limit", id="cell"),
        ("burstgpt", "Timestamp,Model,Request tokens,Response tokens\n1,GPT-4,5", "must be a string"),
    ],
)
def test_a_bad_table_is_named(file, name: str, content: str, message: str):
    path = file("bad.csv", content)
    with pytest.raises(BadOption) as refused:
        load(1, dataset_name=name, dataset_path=path)
    assert path in str(refused.value) and message in str(refused.value)


def test_an_unknown_distribution_is_named():
    with pytest.raises(BadOption, match=r"prompt_output.num_tokens is no distribution: 'gauss'"):
        sampler("prompt_output.num_tokens", {"distribution": "gauss"})
