"""A state that a device is still copying to the host."""

from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any


class ComingState(Mapping[str, Any]):
    """A state by name that is complete when `coming` is: who looks at a tensor waits for it.

    Names and size are known at once. Looking at a tensor raises RuntimeError if the copy has failed.
    """

    def __init__(self, names: Collection[str], nbytes: int, coming: "Future[dict[str, Any]]") -> None:
        self.nbytes = nbytes
        self._names = tuple(names)
        self._coming = coming

    def __getitem__(self, name: str) -> Any:
        try:
            state = self._coming.result()
        except Exception as error:
            raise RuntimeError(f"a state did not come to the host: {error}") from error
        return state[name]

    def __contains__(self, name: object) -> bool:  # Mapping's own looks at the tensor
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
