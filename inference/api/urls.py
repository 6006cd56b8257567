"""The routes: one line for each. To add an endpoint, write a module in one of the rooms and a line here."""

from typing import Any

from django.urls import URLPattern, path

from inference.api.edge.base import ApiView
from inference.api.edge.not_found import NotFoundView
from inference.api.native.batch_completions import BatchCompletionsView
from inference.api.native.big_batch import BigBatchView, HealthzView
from inference.api.native.fim import FimView
from inference.api.native.token_count import TokenCountView
from inference.api.native.translate import TranslateView
from inference.api.native.versions import V2View, V3View
from inference.api.openai.batches import BatchCancelView, BatchListView, BatchView
from inference.api.openai.chat import ChatView, OpenAIChatView
from inference.api.openai.chat_batch import ChatBatchView
from inference.api.openai.completions import CompletionView
from inference.api.openai.embeddings import EmbeddingsView
from inference.api.openai.files import FileContentView, FileListView, FileView
from inference.api.openai.model_list import ModelListView, ModelView
from inference.api.openai.responses_api import ResponsesView, ResponseView
from inference.api.service.health import HealthView, StatsView
from inference.api.service.index import IndexView
from inference.api.service.model_load import ModelLoadView
from inference.api.service.server_control import PauseView, ResumeView, ServerStatusView, StopView
from inference.api.service.tokenize import DetokenizeView, TokenizerInfoView, TokenizeView
from inference.api.service.vllm_ops import LoadView, MetricsView, PingView, VersionView
from inference.api.states.initial_states import InitialStateDeleteView, InitialStateListView, InitialStateUploadView
from inference.api.states.multi_state import MultiStateChatView
from inference.api.states.state import StateChatView
from inference.api.states.state_list import StateDeleteView, StateStatusView


def both(route: str, view: type[ApiView], **options: Any) -> list[URLPattern]:
    """The route with and without a slash at its end: the older servers' clients use either."""
    unlisted = {**options, "schema": None}
    return [path(route, view.as_view(**options)), path(f"{route}/", view.as_view(**unlisted))]


urlpatterns = [
    path("", IndexView.as_view()),
    *both("health", HealthView),
    *both("stats", StatsView),
    *both("v1/models", ModelListView),
    path("v1/models/<path:model>", ModelView.as_view()),
    *both("openai/v1/models", ModelListView, schema=None),
    *both("v1/completions", CompletionView),
    *both("v1/chat/completions", ChatView),
    *both("openai/v1/chat/completions", OpenAIChatView),
    *both("v1/chat/completions/batch", ChatBatchView),
    *both("v1/responses", ResponsesView),
    *both("v1/responses/<slug:response_id>", ResponseView),
    *both("v1/embeddings", EmbeddingsView),
    *both("tokenize", TokenizeView),
    *both("detokenize", DetokenizeView),
    *both("tokenizer_info", TokenizerInfoView),
    *both("version", VersionView),
    *both("ping", PingView),
    *both("load", LoadView),
    *both("metrics", MetricsView),
    *both("v1/files", FileListView),
    *both("v1/files/<slug:key>", FileView),
    *both("v1/files/<slug:key>/content", FileContentView),
    *both("v1/batches", BatchListView),
    *both("v1/batches/<slug:key>", BatchView),
    *both("v1/batches/<slug:key>/cancel", BatchCancelView),
    *both("v1/batch/completions", BatchCompletionsView),
    *both("v2/chat/completions", V2View),
    *both("v3/chat/completions", V3View),
    *both("big_batch/completions", BigBatchView),
    *both("healthz", HealthzView),
    *both("FIM/v1/batch-FIM", FimView),
    *both("translate/v1/batch-translate", TranslateView),
    *both("v1/tokens/count", TokenCountView),
    *both("v1/server/status", ServerStatusView),
    *both("status", ServerStatusView),
    *both("v1/server/stop", StopView),
    *both("v1/server/pause", PauseView),
    *both("v1/server/resume", ResumeView),
    *both("v1/model/load", ModelLoadView),
    *both("v1/state/upload", InitialStateUploadView),
    *both("v1/state/list", InitialStateListView),
    *both("v1/state/delete", InitialStateDeleteView),
    *both("state/chat/completions", StateChatView),
    *both("multi_state/chat/completions", MultiStateChatView),
    *both("state/status", StateStatusView),
    *both("state/delete", StateDeleteView),
    path("<path:route>", NotFoundView.as_view(schema=None)),
]
