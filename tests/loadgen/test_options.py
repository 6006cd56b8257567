"""Options from the command line to the frozen profile, and what is refused."""

import re
from argparse import ArgumentError, ArgumentParser
from math import inf
from typing import Any

import pytest

from benchmarks import commands
from benchmarks.loadgen import declare, foreign
from benchmarks.loadgen.declare import BadOption
from benchmarks.loadgen.options import MASK, Profile, checked_profile, frozen
from benchmarks.loadgen.target import make_target

# All that `vllm bench serve` has, and its predecessors.
VLLM_OPTIONS = """
--backend --base-url --host --port --endpoint --header --insecure --model --served-model-name --extra-body
--chat-template-kwargs --request-id-prefix
--tokenizer --tokenizer-mode --trust-remote-code --skip-tokenizer-init
--num-prompts --request-rate --burstiness --max-concurrency --ramp-up-strategy --ramp-up-start-rps --ramp-up-end-rps
--num-warmups --ready-check-timeout-sec --seed --disable-shuffle --self-timed --no-self-timed
--top-p --top-k --min-p --temperature --frequency-penalty --presence-penalty --repetition-penalty --ignore-eos
--logprobs --use-beam-search --best-of --lora-modules --lora-assignment
--percentile-metrics --metric-percentiles --goodput --save-result --save-detailed --append-result --result-dir
--result-filename --metadata --label --disable-tqdm --profile --plot-timeline --timeline-itl-thresholds
--plot-dataset-stats
--dataset-name --dataset-path --no-oversample --skip-chat-template --enable-multimodal-chat --no-stream --input-len
--output-len --sharegpt-output-len --custom-output-len --custom-ensure-client-side-data
--sonnet-input-len --sonnet-output-len --sonnet-prefix-len
--random-input-len --random-output-len --random-range-ratio --random-prefix-len --random-batch-size --no-reranker
--hf-subset --hf-split --hf-name --hf-output-len
--prefix-repetition-prefix-len --prefix-repetition-suffix-len --prefix-repetition-num-prefixes
--prefix-repetition-output-len --spec-bench-output-len --spec-bench-category --speed-bench-output-len
--speed-bench-dataset-subset --speed-bench-category
--timed-trace-chunk-hash-size --timed-trace-sec-multiplier --timed-trace-label-timestamp
--timed-trace-label-input-length --timed-trace-label-output-length --timed-trace-label-hash-ids
--blazedit-min-distance --blazedit-max-distance --asr-min-audio-len-sec --asr-max-audio-len-sec --bfcl-categories
--random-mm-base-items-per-request --random-mm-num-mm-items-range-ratio --random-mm-limit-mm-per-prompt
--random-mm-bucket-config
"""
# All that its benchmark_serving_multi_turn.py has.
MULTI_TURN_OPTIONS = """
-i --input-file -o --output-file --seed -m --model --served-model-name -u --url --api-key --header -p --num-clients
-k --max-active-conversations -n --max-num-requests --warmup-step --warmup-percentages --max-turns --no-early-stop
--limit-max-tokens --limit-min-tokens --request-rate --max-retries --conversation-sampling --verify-output
--request-timeout-sec --no-stream --send-conversation-id -e --excel-output --stats-json-output -v --verbose
--print-content --trust-remote-code
"""
# All that api_bench_tools has, in its older and its newer form.
ALL_PPL_OPTIONS = """
--num-requests --num-turns --num-threads --ramp-up-time --thread-stop-time --num-clients --stop-time --execute-mode
--allow-repetitive-requests --best-of --backend --api-key --endpoint --dataset --dataset-path --system-prompt-path
--log-file
"""
PPL_OPTIONS = {"--num-threads": "users", "--ramp-up-time": "ramp_up_time", "--thread-stop-time": "duration"}


def parsed(*words: str) -> dict[str, Any]:
    parser = ArgumentParser(exit_on_error=False)
    declare.add_arguments(parser, Profile)
    return vars(parser.parse_args(words))


def command_parser(command: str) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    commands.load(command).add_arguments(parser)
    return parser


@pytest.mark.parametrize(
    ("command", "wanted"),
    [("serve", VLLM_OPTIONS), ("multiturn", MULTI_TURN_OPTIONS), ("clients", ALL_PPL_OPTIONS)],
)
def test_every_option_of_the_other_tools_is_known(command: str, wanted: str):
    known = set(re.findall(r"(?<![\w-])--?\w[\w-]*", command_parser(command).format_help()))
    assert [name for name in wanted.split() if name not in known] == []


def test_an_option_without_effect_is_accepted_and_says_so(capsys: pytest.CaptureFixture[str]):
    words = ["--tokenizer-mode", "slow", "--hf-split=test", "--trust-remote-code", "--best-of", "2"]
    values = vars(command_parser("serve").parse_args(words))
    assert values["best_of"] == "2"
    assert not {"tokenizer_mode", "hf_split", "trust_remote_code"} & values.keys()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["--tokenizer-mode", "--hf-split", "--trust-remote-code"]
    assert all("has no effect here: " in line for line in lines)


def test_a_key_on_the_command_line_is_refused_and_not_shown():
    with pytest.raises(ArgumentError, match="--api-key-env NAME") as refused:
        command_parser("clients").parse_args(["--api-key", "the-secret"])
    assert "the-secret" not in str(refused.value)


def test_every_option_of_the_tables_takes_its_values(capsys: pytest.CaptureFixture[str]):
    for flags, (count, reason) in {**foreign.NO_EFFECT, **foreign.REFUSED}.items():
        flag = flags.split()[0]
        words = [flag] if count == foreign.NONE else [flag, "1"]
        if flags in foreign.NO_EFFECT:
            command_parser("serve").parse_args(words)
            assert capsys.readouterr().err == f"{flag} has no effect here: {reason}\n"
        else:
            with pytest.raises(ArgumentError, match=re.escape(reason)):
                command_parser("serve").parse_args(words)


def test_a_range_ratio_is_a_share_or_one_for_each_side():
    assert checked_profile(parsed("--random-range-ratio", "0.25")).random_range_ratio == 0.25
    given = parsed("--random-range-ratio", '{"input": 0.5, "output": 0}')
    assert checked_profile(given).random_range_ratio == {"input": 0.5, "output": 0}
    assert parsed(*declare.to_arguments(Profile, given)) == given
    assert checked_profile(frozen(checked_profile(given))).random_range_ratio == {"input": 0.5, "output": 0}


def test_best_of_and_exact_lengths_are_sent():
    target = make_target(checked_profile({"best_of": 2, "exact_length": True}), run_id="0", synthetic=False)
    assert target.options.sampling == {"best_of": 2}
    assert target.options.ignore_eos and target.options.exact_length


def test_api_bench_tools_options_are_taken_for_ours():
    values = parsed(*(word for name in PPL_OPTIONS for word in (name, "12")))
    assert values == dict.fromkeys(PPL_OPTIONS.values(), "12")


def test_what_is_not_given_has_the_structs_default():
    assert parsed() == {}
    profile = checked_profile(parsed("--request-rate", "7.5", "--no-stream"))
    assert (profile.request_rate, profile.stream, profile.port) == (7.5, False, 8000)


def test_pairs_lists_and_objects():
    words = "--header A=1 B=2=3 --header C=4 --goodput ttft:200 tpot:50 --base-url http://a http://b"
    profile = checked_profile(parsed(*words.split(), "--extra-body", '{"n": [1]}'))
    assert profile.header == {"A": "1", "B": "2=3", "C": "4"}
    assert profile.goodput == {"ttft": 200.0, "tpot": 50.0}
    assert profile.base_url == ["http://a", "http://b"]
    assert profile.extra_body == {"n": [1]}


def test_the_command_line_made_from_a_profile_gives_it_again():
    words = "--users 3 --no-stream --goodput ttft:20 --header A=b --base-url http://a --duration 4 --label x=y"
    given = parsed(*words.split(), "--extra-body", '{"a": "b c"}', "--metadata", "m=")
    again = parsed(*declare.to_arguments(Profile, given))
    assert checked_profile(again) == checked_profile(given)


def test_a_frozen_profile_holds_no_secret_and_can_be_read_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOME_KEY", "the secret")
    header = {"Authorization": "Bearer x", "X-Api-Key": "y", "Cookie": "z", "Accept": "text/plain"}
    values = {"header": header, "extra_body": {"password": "p", "top_k": 3}, "api_key_env": "SOME_KEY"}
    profile = checked_profile(values)
    target = make_target(profile, run_id="0" * 32, synthetic=False)
    assert target.headers["Authorization"] == "Bearer x"  # given by hand, it comes before the key
    kept = frozen(profile)
    assert kept["header"] == {"Authorization": MASK, "X-Api-Key": MASK, "Cookie": MASK, "Accept": "text/plain"}
    assert kept["extra_body"] == {"password": MASK, "top_k": 3}
    assert "the secret" not in str(kept)
    assert kept["request_rate"] == "inf"
    assert checked_profile(kept).request_rate == inf


def test_the_key_of_the_environment_is_sent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert make_target(checked_profile({}), run_id="0", synthetic=True).headers == {"Authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"request_rate": "0"}, "--request-rate: expected `float` > 0"),
        ({"port": "http"}, "--port: expected `int`"),
        ({"goodput": {"ttft": "fast"}}, "--goodput: expected `float`"),
        ({"backend": "telnet"}, "--backend: 'telnet' is none of openai, openai-chat"),
        ({"dataset_name": "novel"}, "--dataset-name: 'novel' is none of random"),
        ({"users": 2, "request_rate": 5}, "--users and --request-rate exclude each other"),
        ({"request_rate": 5, "stages": ["1:2"]}, "--request-rate and --stages exclude each other"),
        ({"stages": ["1:2", "fast"]}, "--stages: 'fast' is not of the form RATE:SECONDS"),
        ({"stages": ["-1:2"]}, "--stages: '-1:2' needs a rate"),
        ({"duration": 5}, "--duration needs --num-prompts, a rate or --users"),
        ({"sinus_amplitude": 5}, "--sinus-amplitude swings around --request-rate"),
        ({"sinus_amplitude": 5, "request_rate": 4}, "the rate would be negative"),
        ({"ramp_up_start_rps": 1}, "--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1}, "needs --ramp-up-start-rps and --ramp-up-end-rps"),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 3, "ramp_up_end_rps": 2},
            "--ramp-up-start-rps is larger than --ramp-up-end-rps",
        ),
        (
            {"ramp_up_strategy": "exponential", "ramp_up_start_rps": 0, "ramp_up_end_rps": 2},
            "--ramp-up-start-rps: 0 would never send the first request",
        ),
        (
            {"ramp_up_strategy": "linear", "ramp_up_start_rps": 0, "ramp_up_end_rps": 2, "ramp_up_by": "index"},
            "--ramp-up-start-rps: 0 would never send the first request",
        ),
        ({"ramp_up_time": 5}, "--ramp-up-time needs --users"),
        ({"dataset_name": "conversations"}, "--dataset-name conversations needs --users"),
        ({"stateful": True, "users": 1}, "--stateful needs --dataset-name conversations"),
        ({"template": "t.json", "backend": "tgi"}, "--template stands in place of --backend"),
        ({"tokenizer": "gpt2"}, "--tokenizer: 'gpt2' is not here: use rwkv, the World vocabulary, or none"),
        ({"dataset_name": "random-mm"}, "--dataset-name: random-mm is not here: use custom with messages"),
        ({"random_range_ratio": {"in": 0.5}}, "--random-range-ratio: 'in' is neither input nor output"),
        ({"random_range_ratio": {"input": 1.5}}, "--random-range-ratio: expected `float` < 1"),
        ({"random_range_ratio": "wide"}, "--random-range-ratio: expected `"),
        ({"max_retries": 1}, "--max-retries are of conversations"),
        ({"limit_max_tokens": 3, "limit_min_tokens": 4}, "--limit-min-tokens is larger than --limit-max-tokens"),
        ({"dataset_name": "conversations", "users": 1, "batch_size": 2}, "--batch-size: the turns of"),
        ({"metric_percentiles": "p99"}, "--metric-percentiles: 'p99' is not a list of numbers"),
    ],
)
def test_an_unusable_option_is_named(values: dict[str, Any], message: str):
    with pytest.raises(BadOption) as refused:
        checked_profile(values)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"base_url": ["http://example.org/"]}, "example.org is not this machine; add --allow-host example.org"),
        ({"base_url": ["http://127.0.0.1:1", "http://10.0.0.1"]}, "10.0.0.1 is not this machine"),
        ({"host": "localhost.example.org"}, "localhost.example.org is not this machine"),
        ({"base_url": ["file:///etc/passwd"]}, "is not an http or https URL"),
    ],
)
def test_only_this_machine_is_loaded_without_being_asked(values: dict[str, Any], message: str):
    with pytest.raises(BadOption) as refused:
        make_target(checked_profile(values), run_id="0", synthetic=True)
    assert message in str(refused.value)


def test_a_host_that_is_allowed_is_loaded():
    profile = checked_profile({"base_url": ["https://example.org/"], "allow_host": ["example.org"]})
    assert make_target(profile, run_id="0", synthetic=True).urls == ["https://example.org"]
