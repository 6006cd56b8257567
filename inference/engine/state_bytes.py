"""A back end's states as bytes, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor


class StateFormat:
    """How states of one back end lie in bytes: tensor behind tensor, in C order, in the machine's byte order.

    `dtype` names the element types, as in "float16/float32".
    """

    def __init__(self, example: Mapping[str, Tensor]) -> None:
        self._shapes = {name: tensor.shape for name, tensor in example.items()}
        self._dtypes = {name: tensor.dtype for name, tensor in example.items()}
        self.dtype = "/".join(str(dtype).removeprefix("torch.") for dtype in self._dtypes.values())
        self.size = sum(tensor.nbytes for tensor in example.values())

    def pack(self, state: Mapping[str, Tensor]) -> bytes:
        parts = [state[name].contiguous().flatten().view(torch.uint8) for name in self._shapes]
        return torch.cat(parts).numpy().tobytes()

    def unpack(self, data: bytes) -> dict[str, Tensor]:
        """Raises ValueError if it is not a state of this format."""
        if len(data) != self.size:
            raise ValueError(f"state: found {len(data)} bytes, expected {self.size} of {self.dtype}")
        buffer = bytearray(data)  # tensors are writable, bytes are not
        state, begin = {}, 0
        for name, shape in self._shapes.items():
            dtype = self._dtypes[name]
            count = shape.numel()
            part = torch.frombuffer(buffer, dtype=dtype, count=count, offset=begin)
            state[name] = part.reshape(shape)
            begin += count * dtype.itemsize
        return state
