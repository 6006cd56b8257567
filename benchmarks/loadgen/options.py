"""What a run is asked to do: every option, with `vllm bench serve`'s names and api_bench_tools' as aliases.

A `Profile` is a whole load. It is checked as a whole by `checked_profile`, and kept with its run by `frozen`.
"""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Any

import msgspec

from benchmarks.loadgen import checks, declare
from benchmarks.loadgen.backends import BACKENDS
from benchmarks.loadgen.checks import CONVERSATIONS, TOKENIZERS, parse_percentiles, parse_stages
from benchmarks.loadgen.declare import option

__all__ = ["CONVERSATIONS", "Profile", "checked_profile", "frozen", "parse_percentiles", "parse_stages"]

TARGET, LOAD, USERS, LIMITS = "target", "open loop", "users (closed loop) and conversations", "limits"
SAMPLING, DATASET, METRICS, PROCESS = "sampling", "dataset", "metrics", "the generator itself"

DATASET_NAMES = (
    "random",
    "sharegpt",
    "sonnet",
    "burstgpt",
    "custom",
    "hf",
    "spec_bench",
    "xiaomi",
    "prefix_repetition",
    "timed_trace",
    *CONVERSATIONS,
)
DEFAULT_REQUESTS = 1000
USER_STAGGER_SECONDS = 0.1  # between two users' starts, unless told otherwise
SECRET_WORDS = ("auth", "cookie", "key", "token", "secret", "password")
MASK = "***"

Count = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]
CountOrRow = Annotated[int, msgspec.Meta(ge=-1)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
PositiveShare = Annotated[float, msgspec.Meta(gt=0, le=1)]
Ratio = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Profile(msgspec.Struct, kw_only=True, frozen=True):
    """The options of one load. Times are in seconds, rates in requests per second."""

    backend: Annotated[
        str, option(TARGET, "wire protocol of the server", "--endpoint-type", choices=tuple(BACKENDS))
    ] = "openai"
    base_url: Annotated[
        list[str], option(TARGET, "one or several URLs, taken in turn; before --host and --port", "--url", "-u")
    ] = []
    host: Annotated[str, option(TARGET, "of the server")] = "127.0.0.1"
    port: Annotated[Port, option(TARGET, "of the server")] = 8000
    endpoint: Annotated[str, option(TARGET, "path; default: the back end's own")] = ""
    allow_host: Annotated[list[str], option(TARGET, "hosts other than this machine that may be loaded")] = []
    header: Annotated[dict[str, str], option(TARGET, "extra headers")] = {}
    api_key_env: Annotated[str, option(TARGET, "environment variable that holds the bearer key")] = "OPENAI_API_KEY"
    insecure: Annotated[bool, option(TARGET, "do not check the server's certificate")] = False
    model: Annotated[str, option(TARGET, "default: the first of /v1/models", "-m")] = ""
    served_model_name: Annotated[str, option(TARGET, "the model's name in requests, where it is another")] = ""
    extra_body: Annotated[dict[str, Any], option(TARGET, "fields to add to every request")] = {}
    chat_template_kwargs: Annotated[dict[str, Any], option(TARGET, "sent with every chat request")] = {}
    template: Annotated[str, option(TARGET, "JSON file that describes a wire protocol; instead of --backend")] = ""
    request_id_prefix: Annotated[str, option(TARGET, "of x-request-id; default: bench- and the run's id")] = ""
    lora_modules: Annotated[list[str], option(TARGET, "model names to spread the requests over")] = []
    lora_assignment: Annotated[str, option(TARGET, "of those names", choices=("random", "round-robin"))] = "random"
    profile: Annotated[bool, option(TARGET, "have the server profile the load: /start_profile, /stop_profile")] = False
    ready_check_timeout_sec: Annotated[NonNegative, option(TARGET, "wait that long for the server to answer")] = 0.0

    num_prompts: Annotated[
        Count | None,
        option(
            LIMITS,
            "requests in all; default: 1000, or no limit with --duration",
            *("--num-requests", "--max-num-requests", "-n"),
        ),
    ] = None
    duration: Annotated[
        NonNegative,
        option(LIMITS, "send nothing after so many seconds; 0: no limit", "--thread-stop-time", "--stop-time"),
    ] = 0.0
    grace: Annotated[NonNegative, option(LIMITS, "seconds for running requests once sending stopped early")] = 30.0
    max_errors: Annotated[Count | None, option(LIMITS, "stop after so many failed requests")] = None
    max_error_rate: Annotated[
        PositiveShare | None, option(LIMITS, "stop when that share of at least 20 requests has failed")
    ] = None
    over_saturation: Annotated[
        str,
        option(LIMITS, "what to do when requests in flight and TTFT only grow", choices=("ignore", "report", "stop")),
    ] = "report"
    connect_timeout_sec: Annotated[NonNegative, option(LIMITS, "for a connection; 0: none")] = 30.0
    first_token_timeout_sec: Annotated[NonNegative, option(LIMITS, "to the first byte of an answer; 0: none")] = 0.0
    request_timeout_sec: Annotated[NonNegative, option(LIMITS, "for a whole request; 0: none")] = 6 * 3600.0
    cancel_fraction: Annotated[Share, option(LIMITS, "share of requests to give up midway")] = 0.0
    cancel_after: Annotated[NonNegative, option(LIMITS, "seconds after which those are given up")] = 1.0

    request_rate: Annotated[Positive, option(LOAD, "requests per second; inf sends all at once")] = inf
    burstiness: Annotated[
        Positive, option(LOAD, "shape of the gamma distributed gaps: 1 Poisson, below burstier, inf even")
    ] = 1.0
    max_concurrency: Annotated[Count | None, option(LOAD, "most requests at once; others wait")] = None
    ramp_up_strategy: Annotated[str, option(LOAD, "instead of one rate", choices=("", "linear", "exponential"))] = ""
    ramp_up_start_rps: Annotated[NonNegative | None, option(LOAD, "where the ramp begins")] = None
    ramp_up_end_rps: Annotated[Positive | None, option(LOAD, "where it ends")] = None
    ramp_up_by: Annotated[
        str, option(LOAD, "what the ramp follows; index is what vLLM does", choices=("time", "index"))
    ] = "time"
    ramp_up_seconds: Annotated[
        Positive | None, option(LOAD, "how long a ramp in time takes; default: until all requests are sent")
    ] = None
    stages: Annotated[
        list[str], option(LOAD, "constant rates one after the other, each as RATE:SECONDS, instead of one rate")
    ] = []
    sinus_amplitude: Annotated[NonNegative, option(LOAD, "by how much the rate swings around --request-rate")] = 0.0
    sinus_period: Annotated[Positive, option(LOAD, "seconds of one swing")] = 60.0
    self_timed: Annotated[
        bool | None, option(LOAD, "send at the data set's own times; default for timed_trace alone")
    ] = None
    time_multiplier: Annotated[Positive, option(LOAD, "stretches those times: 2 is half as fast")] = 1.0

    users: Annotated[
        Count | None,
        option(USERS, "users who ask again once they have their answer", "--num-threads", "--num-clients", "-p"),
    ] = None
    ramp_up_time: Annotated[
        NonNegative | None, option(USERS, "seconds over which the users start; default: 0.1 for each")
    ] = None
    allow_repetitive_requests: Annotated[
        bool, option(USERS, "each user goes through all prompts, in an order of its own")
    ] = False
    think_time: Annotated[
        NonNegative, option(USERS, "mean seconds between an answer and its user's next request, exponential")
    ] = 0.0
    max_active_conversations: Annotated[
        Count | None, option(USERS, "conversations open at once, over all users; default: one for each", "-k")
    ] = None
    conversation_sampling: Annotated[
        str, option(USERS, "which of its conversations a user goes on with", choices=("round_robin", "random"))
    ] = "round_robin"
    max_turns: Annotated[Count | None, option(USERS, "of a conversation; one is a question with its answer")] = None
    limit_max_tokens: Annotated[
        int, option(USERS, "tokens of an answer in a conversation; 0: as the data set has them, negative: no limit")
    ] = 0
    limit_min_tokens: Annotated[
        int, option(USERS, "the least of them, sent as min_tokens; 0: as the data set has them, negative: none")
    ] = -1
    max_retries: Annotated[
        Natural, option(USERS, "of a failed turn; each is a request of its own, after 1, 2, 4, ... s")
    ] = 0
    stateful: Annotated[
        bool, option(USERS, "the server keeps the conversation: send its session_id and the new turn alone")
    ] = False
    send_conversation_id: Annotated[bool, option(USERS, "as conversation_id and X-Session-ID")] = False

    stream: Annotated[bool, option(SAMPLING, "ask for a stream")] = True
    temperature: Annotated[NonNegative | None, option(SAMPLING, "default: the server's")] = None
    top_p: Annotated[PositiveShare | None, option(SAMPLING, "default: the server's")] = None
    top_k: Annotated[int | None, option(SAMPLING, "default: the server's")] = None
    min_p: Annotated[Share | None, option(SAMPLING, "default: the server's")] = None
    frequency_penalty: Annotated[float | None, option(SAMPLING, "default: the server's")] = None
    presence_penalty: Annotated[float | None, option(SAMPLING, "default: the server's")] = None
    repetition_penalty: Annotated[Positive | None, option(SAMPLING, "default: the server's")] = None
    best_of: Annotated[Count | None, option(SAMPLING, "default: the server's")] = None
    use_beam_search: Annotated[bool, option(SAMPLING, "send use_beam_search")] = False
    ignore_eos: Annotated[
        bool | None, option(SAMPLING, "generate the full length; default: for synthetic prompts alone")
    ] = None
    exact_length: Annotated[
        bool, option(SAMPLING, "ignore_eos, and min_tokens as large as max_tokens, as api_bench_tools has it")
    ] = False
    logprobs: Annotated[Natural | None, option(SAMPLING, "ask for so many per token")] = None

    dataset_name: Annotated[str, option(DATASET, "where prompts come from", "--dataset", choices=DATASET_NAMES)] = (
        "random"
    )
    dataset_path: Annotated[str, option(DATASET, "file of the data set", "-i", "--input-file")] = ""
    tokenizer: Annotated[
        str, option(DATASET, "rwkv is the World vocabulary; none estimates lengths", choices=TOKENIZERS)
    ] = "rwkv"
    skip_tokenizer_init: Annotated[bool, option(DATASET, "the same as --tokenizer none")] = False
    system_prompt_path: Annotated[str, option(DATASET, "text file to put before every prompt")] = ""
    seed: Annotated[int, option(DATASET, "of everything that is drawn")] = 0
    prompt_seed: Annotated[
        int | None, option(DATASET, "of the prompts alone, for a run that must not repeat another's; default: --seed")
    ] = None
    disable_shuffle: Annotated[bool, option(DATASET, "keep the file's order")] = False
    oversample: Annotated[bool, option(DATASET, "repeat prompts when the data set has too few")] = True
    batch_size: Annotated[
        Count, option(DATASET, "prompts in one request, for back ends that take several", "--random-batch-size")
    ] = 1
    input_len: Annotated[Count | None, option(DATASET, "prompt tokens, for any data set that makes its prompts")] = None
    output_len: Annotated[Count | None, option(DATASET, "tokens to generate, for any data set")] = None
    random_input_len: Annotated[Count, option(DATASET, "prompt tokens")] = 1024
    random_output_len: Annotated[Count, option(DATASET, "tokens to generate")] = 128
    random_range_ratio: Annotated[
        Ratio | dict[str, Ratio],
        option(DATASET, 'lengths vary by this share, both ways; or {"input": share, "output": share}'),
    ] = 0.0
    random_prefix_len: Annotated[Natural, option(DATASET, "tokens that all prompts begin with")] = 0
    sharegpt_output_len: Annotated[Count | None, option(DATASET, "default: as long as the data set's answers")] = None
    num_turns: Annotated[Count, option(DATASET, "turns of a ShareGPT conversation that make one prompt")] = 1
    sonnet_input_len: Annotated[Count, option(DATASET, "prompt tokens")] = 550
    sonnet_output_len: Annotated[Count, option(DATASET, "tokens to generate")] = 150
    sonnet_prefix_len: Annotated[Natural, option(DATASET, "tokens that all prompts begin with")] = 200
    custom_output_len: Annotated[CountOrRow, option(DATASET, "tokens to generate; -1: by row")] = 256
    hf_output_len: Annotated[
        Count | None,
        option(
            DATASET,
            "of hf and spec_bench; default: 256, or as long as the row's answer",
            *("--spec-bench-output-len", "--speed-bench-output-len"),
        ),
    ] = None
    hf_prompt_field: Annotated[str, option(DATASET, "column of the prompt; default: found by name")] = ""
    prefix_repetition_prefix_len: Annotated[Natural, option(DATASET, "tokens of a prefix")] = 256
    prefix_repetition_suffix_len: Annotated[Count, option(DATASET, "tokens behind it")] = 256
    prefix_repetition_num_prefixes: Annotated[Count, option(DATASET, "different prefixes")] = 10
    prefix_repetition_output_len: Annotated[Count, option(DATASET, "tokens to generate")] = 128
    timed_trace_hash_chunk: Annotated[
        Count, option(DATASET, "tokens of one hash id (Mooncake: 512)", "--timed-trace-chunk-hash-size")
    ] = 16
    timed_trace_sec_multiplier: Annotated[
        Positive, option(DATASET, "seconds of one unit of its times; 1 where they are in seconds")
    ] = 0.001
    timed_trace_label_timestamp: Annotated[str, option(DATASET, "field of a row's time")] = "timestamp"
    timed_trace_label_input_length: Annotated[str, option(DATASET, "field of its prompt's tokens")] = "input_length"
    timed_trace_label_output_length: Annotated[str, option(DATASET, "field of its answer's tokens")] = "output_length"
    timed_trace_label_hash_ids: Annotated[str, option(DATASET, "field of its hash ids")] = "hash_ids"
    num_conversations: Annotated[Count, option(DATASET, "of synthetic_conversations")] = 100
    conversation_spec: Annotated[
        dict[str, Any], option(DATASET, "distributions of synthetic_conversations, as in a generator file")
    ] = {}

    num_warmups: Annotated[Natural, option(METRICS, "requests before the load, in no figure")] = 0
    warmup_seconds: Annotated[NonNegative, option(METRICS, "the load's first seconds are in no figure")] = 0.0
    cooldown_seconds: Annotated[NonNegative, option(METRICS, "the schedule's last seconds are not measured")] = 0.0
    goodput: Annotated[
        dict[str, float], option(METRICS, "limits in ms that a good request keeps, such as ttft:200 tpot:50")
    ] = {}
    percentile_metrics: Annotated[
        str, option(METRICS, "latencies to show, from ttft, ttft_sched, ttfot, tpot, itl, icl, e2el, queue_delay, ...")
    ] = "ttft,tpot,itl,e2el"
    metric_percentiles: Annotated[str, option(METRICS, "percentiles to show")] = "99"
    stall_ms: Annotated[Positive, option(METRICS, "a gap between two chunks that is longer is a stall")] = 500.0
    label: Annotated[str, option(METRICS, "runs of one label are repeats of each other")] = ""
    metadata: Annotated[dict[str, str], option(METRICS, "kept with the result")] = {}
    keep_text: Annotated[bool, option(METRICS, "keep the answers in the result")] = False

    workers: Annotated[Natural, option(PROCESS, "processes; 0: one for each 128 streams, within the cores")] = 0


def checked_profile(values: Mapping[str, Any]) -> Profile:
    """The profile from `values` by option name; other names are left alone. Raises BadOption."""
    checks.refuse_foreign(values)
    profile = declare.read(Profile, values)
    checks.check(profile)
    return profile


def frozen(profile: Profile) -> dict[str, Any]:
    """The profile as it is kept with its run: JSON values by option name, secrets masked."""
    values = declare.to_json(profile)
    return {**values, "header": _masked(values["header"]), "extra_body": _masked(values["extra_body"])}


def _masked(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: MASK if any(word in name.lower() for word in SECRET_WORDS) else value for name, value in fields.items()
    }
