"""The wire protocols that a load can speak. A new one is a module here, and a line in the table.

What needs more than a name is made by its own function: `backends.template.load_template`.
"""

from benchmarks.loadgen.backends.generate_stream import GenerateStream
from benchmarks.loadgen.backends.llamacpp import LlamaCpp
from benchmarks.loadgen.backends.openai import Chat, Completions, DeepSpeedMII, Embeddings, Rerank
from benchmarks.loadgen.backends.openai_audio import Audio
from benchmarks.loadgen.backends.rwkv import NativeBackend, Translation, fill_in, messages_or_contents, state_turn
from benchmarks.loadgen.backends.sglang import SGLang
from benchmarks.loadgen.backends.tensorrt_llm import TensorRTLLM
from benchmarks.loadgen.exchange import Backend

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
TGI = {"do_sample": True, "temperature": 0.01, "top_p": 0.99}
LIGHTLLM = {"do_sample": False}

_ALL: tuple[Backend, ...] = (
    Completions(name="openai", default_endpoint=COMPLETIONS),
    Chat(name="openai-chat", default_endpoint=CHATS, length_field="max_completion_tokens"),
    Completions(name="vllm", default_endpoint=COMPLETIONS, usage_in_every_chunk=True),
    Chat(name="vllm-chat", default_endpoint=CHATS, usage_in_every_chunk=True),
    Completions(name="lmdeploy", default_endpoint=COMPLETIONS),
    Completions(name="scalellm", default_endpoint=COMPLETIONS),
    Completions(name="sglang", default_endpoint=COMPLETIONS),
    Completions(name="llama.cpp", default_endpoint=COMPLETIONS),
    Completions(name="truss", default_endpoint="/v1/models/model:predict"),
    DeepSpeedMII(name="deepspeed-mii", default_endpoint=COMPLETIONS, streams=False),
    Audio(name="openai-audio", default_endpoint="/v1/audio/transcriptions", fixed={"language": "en"}),
    Embeddings(name="openai-embeddings", default_endpoint=EMBEDDINGS),
    Embeddings(name="openai-embeddings-chat", default_endpoint=EMBEDDINGS, as_messages=True),
    Embeddings(name="openai-embeddings-clip", default_endpoint=EMBEDDINGS, as_messages=True),
    Embeddings(name="openai-embeddings-vlm2vec", default_endpoint=EMBEDDINGS, as_messages=True),
    Embeddings(name="infinity-embeddings", default_endpoint="/embeddings"),
    Embeddings(name="infinity-embeddings-clip", default_endpoint="/embeddings"),
    Embeddings(name="vllm-pooling", default_endpoint="/pooling"),
    Rerank(name="vllm-rerank", default_endpoint="/v1/rerank"),
    NativeBackend(name="rwkv", default_endpoint=CHATS),
    NativeBackend(name="rwkv-batch", default_endpoint="/v1/batch/completions"),
    NativeBackend(name="rwkv-v2", default_endpoint="/v2/chat/completions"),
    NativeBackend(name="rwkv-v3", default_endpoint="/v3/chat/completions", prompt_fields=messages_or_contents),
    NativeBackend(name="rwkv-big-batch", default_endpoint="/big_batch/completions"),
    NativeBackend(name="rwkv-fim", default_endpoint="/FIM/v1/batch-FIM", prompt_fields=fill_in),
    NativeBackend(name="rwkv-state", default_endpoint="/state/chat/completions", prompt_fields=state_turn),
    Translation(name="rwkv-translate", default_endpoint="/translate/v1/batch-translate"),
    GenerateStream(
        name="tgi",
        default_endpoint="/generate_stream",
        parameters=TGI,
        ignore_eos_field="ignore_eos_token",
        truncates=True,
    ),
    GenerateStream(
        name="lightllm", default_endpoint="/generate_stream", parameters=LIGHTLLM, shortest_field="min_new_tokens"
    ),
    GenerateStream(name="amsv2", default_endpoint="/text-generation/generate_stream", parameters=LIGHTLLM),
    TensorRTLLM(name="tensorrt-llm", default_endpoint="/v2/models/ensemble/generate_stream", says_end=False),
    SGLang(name="sglang-native", default_endpoint="/generate"),
    LlamaCpp(name="llama.cpp-native", default_endpoint="/completion"),
)
BACKENDS: dict[str, Backend] = {backend.name: backend for backend in _ALL}
