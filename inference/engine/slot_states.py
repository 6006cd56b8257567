"""One slot's state, taken out of a back end's pool and put back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class SlotStates:
    """What `Backend` says of states, for one whose `_state` has `shift` [L, 2, S, C] and `wkv` [L, S, H, 64, 64]."""

    _state: Any

    @property
    def dtype(self) -> str:
        """As in "float16", or "float16, float32 states" where WKV states are kept otherwise than the activations."""
        activations, states = (
            str(tensor.dtype).removeprefix("torch.") for tensor in (self._state.shift, self._state.wkv)
        )
        return activations if states == activations else f"{activations}, {states} states"

    def export_state(self, slot: int) -> Mapping[str, Tensor]:
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._slot_state(slot).items()}

    def import_state(self, slot: int, state: Mapping[str, Tensor]) -> None:
        targets = self._slot_state(slot)
        check_shapes(state, targets)
        for name, target in targets.items():
            target.copy_(state[name])

    def copy_state(self, source: int, target: int) -> None:
        targets = self._slot_state(target)
        for name, tensor in self._slot_state(source).items():
            targets[name].copy_(tensor)

    def _slot_state(self, slot: int) -> dict[str, Tensor]:
        """Views of the slot's state: `shift` [L, 2, C] and `wkv` [L, H, 64, 64]."""
        return {"shift": self._state.shift[:, :, slot], "wkv": self._state.wkv[:, slot]}


def check_shapes(state: Mapping[str, Tensor], slot: Mapping[str, Tensor]) -> None:
    """Raise ValueError, naming tensor and expected shape, if the state does not fit into the slot."""
    for name, target in slot.items():
        found = list(state[name].shape) if name in state else "missing"
        if found != list(target.shape):
            raise ValueError(f"state tensor {name}: found {found}, expected shape {list(target.shape)}")
