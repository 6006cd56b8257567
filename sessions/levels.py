"""The three levels of one engine process, put together by the settings."""

from collections.abc import Callable

from inference.engine.backend import Backend
from inference.engine.prefix_files import PrefixFiles
from inference.engine.state_bytes import StateFormat
from inference.engine.state_cache import StateCache, state_bytes
from inference.history import BLOCK
from rwkvsite.env import Env
from sessions.keeper import StateKeeper

PREFIX_BLOCKS = {"cuda": 4 * BLOCK}  # a GPU prefills short chunks slowly
FLUSH_SECONDS = 6.0  # what is in memory alone must be written within this time when the engine stops
PREFIX_FLUSH_SECONDS = 2.0  # the same for the beginnings of prompts, which come after the sessions


class Levels:
    def __init__(self, backend: Backend, config: Env, report: Callable[[Exception], None]) -> None:
        """`report` is told of errors in the writing of states that nobody expects."""
        slots = config.state_l1_slots
        if not config.engine_slots:  # the back end took what there is: most of that is for running rows
            slots = min(slots, backend.slots // 4)
        example = backend.export_state(backend.slots - 1)
        self.state_bytes = state_bytes(example)
        self._files = None
        if config.prefix_cache_bytes and config.prefix_cache_disk_bytes:
            self._files = PrefixFiles(
                config.var_dir / "prefixes",
                StateFormat(example),
                backend.model.fingerprint,
                config.prefix_cache_disk_bytes,
            )
        self._keeper = StateKeeper(backend.model, example, most_bytes=max(config.state_l2_bytes, 1), report=report)
        self.cache = StateCache(
            backend,
            slots=range(backend.slots - slots, backend.slots),
            host_entries=config.state_l2_entries,
            host_bytes=config.state_l2_bytes,
            prefix_bytes=config.prefix_cache_bytes,
            prefix_block=PREFIX_BLOCKS.get(backend.device.split(":")[0], BLOCK),
            durable=self._keeper,
            prefix_store=self._files,
        )

    def close(self) -> None:
        """Write what the database has not got yet, and then the prompts' beginnings that are in memory alone."""
        self.cache.begin_sweep()
        while self.cache.sweep_one():
            pass
        self._keeper.close(FLUSH_SECONDS)
        if self._files:
            self.cache.store_prefixes()
            self._files.close(PREFIX_FLUSH_SECONDS)
