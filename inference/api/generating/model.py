"""Which of the loaded models a request means."""

from inference.api.edge.errors import NotFound, Unavailable
from inference.api.rows.engines import live_models
from inference.bus.call import NoEngine
from inference.bus.messages import ModelInfo

# Names that clients of the older RWKV servers send whatever is loaded. They mean the first model.
ANY_MODEL = ("", "rwkv7", "rwkv-7-world")


async def find_model(name: str | None) -> ModelInfo:
    """The loaded model of that name; the first one for None and the names in ANY_MODEL.

    Raises NotFound for another name, and Unavailable when no model is loaded at all.
    """
    models = await live_models()
    if not models:
        raise Unavailable("no model is loaded", retry_after=NoEngine.retry_after)
    for model in models:
        if model.id == name:
            return model
    if name is None or name in ANY_MODEL:
        return models[0]
    raise unknown_model(name)


def unknown_model(name: str) -> NotFound:
    return NotFound(f"model: {name!r} is not loaded here; see /v1/models", param="model", code="model_not_found")
