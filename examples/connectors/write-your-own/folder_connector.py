"""A whole KV connector for vLLM: the KV of a prompt moves from prefill to decode as files in a folder.

An example for vLLM 0.32. docs/connectors/write-your-own.md explains each part, and how PDX runs it.

vLLM creates two instances in each engine. One is in the scheduler, decides what moves and never touches a tensor. The
other is in each worker and moves it. The first sends the second nothing but the `Step` that it builds for each step.
"""

import logging
import os
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.request import RequestStatus

logger = logging.getLogger("vllm.folder_connector")

KEY = "folder_key"
TOKENS = "folder_tokens"
FINISHED_WELL = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass(frozen=True)
class Move:
    """One prompt's KV on its way between the engine's blocks and the files of a key."""

    key: str
    blocks: list[int]
    """The blocks that hold the prompt, in its order."""
    skip: int = 0
    """How many of the first blocks are there already, from the engine's own prefix cache."""


@dataclass
class Step(KVConnectorMetadata):
    """What the workers do beside one forward pass."""

    loads: list[Move] = field(default_factory=list)
    saves: list[Move] = field(default_factory=list)


class FolderConnector(KVConnectorBase_V1):
    """KV through a folder that P and D both reach.

    The folder is the directory that PDX has all engines share. Settings (kv_connector_extra_config): `folder`, another
    one, and `keep_seconds`, after which files that no D fetched are removed (default 60). P and D need the same model,
    block size and parallelism.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = self._kv_transfer_config
        self._folder = Path(settings.get_from_extra_config("folder", os.environ.get("PDX_KV_STORAGE", "kv")))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._keep_seconds = float(settings.get_from_extra_config("keep_seconds", 60))
        self._block_size = vllm_config.cache_config.block_size
        # The scheduler's side: requests whose prompt is still being computed, and those whose KV is in the folder.
        self._saving: dict[str, Any] = {}
        self._saved: dict[str, str] = {}
        self._loading: dict[str, Move] = {}
        self._local_tokens: dict[str, int] = {}
        self._unfetched: deque[tuple[float, str]] = deque()
        # The worker's side. Each rank holds its own part of the KV, so it has its own file.
        self._rank = vllm_config.parallel_config.rank
        self._caches: dict[str, torch.Tensor] = {}
        self._failed: set[int] = set()

    # The scheduler's side, in the order in which vLLM calls it for a request.

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """D: how many remote tokens there are, beyond those that the engine has itself.

        All but the last: the forward pass for the first token of the answer needs one to compute. False: the load is
        complete before that pass begins.
        """
        key = self._key_to_load(request)
        if key is None:
            return 0, False
        self._local_tokens[request.request_id] = num_computed_tokens
        return max(0, request.num_prompt_tokens - 1 - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks are there: D notes what to load into them, P that this prompt is to be saved."""
        local_tokens = self._local_tokens.pop(request.request_id, 0)
        params = request.kv_transfer_params or {}
        if num_external_tokens > 0:
            prompt_blocks = blocks.get_block_ids()[0][: self._blocks_of(request)]
            skip = local_tokens // self._block_size
            self._loading[request.request_id] = Move(params[KEY], prompt_blocks, skip)
        elif params.get("do_remote_decode"):
            self._saving[request.request_id] = request

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        """The step's work. A prompt may be computed in several chunks: it is saved with the last of them."""
        step = Step(loads=list(self._loading.values()))
        self._loading.clear()
        for request_id, count in scheduler_output.num_scheduled_tokens.items():
            request = self._saving.get(request_id)
            if request is None or request.num_computed_tokens + count < request.num_prompt_tokens:
                continue
            del self._saving[request_id]
            key = self._saved[request_id] = uuid.uuid4().hex
            blocks = self._kv_cache_manager.get_block_ids(request_id)[0]
            step.saves.append(Move(key, blocks[: self._blocks_of(request)]))
        self._forget_unfetched(time.monotonic())
        return step

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """P tells where the KV is: the gateway gives this very mapping to D. D has loaded and removes the files.

        D hears here of a leg that vLLM refused, too. False: the blocks may be freed at once, because the copy in the
        folder is complete by now.
        """
        self._saving.pop(request.request_id, None)
        self._loading.pop(request.request_id, None)
        self._local_tokens.pop(request.request_id, None)
        saved = self._saved.pop(request.request_id, None)
        fetched = _key_of(request)
        if fetched is not None:
            self._remove(fetched)
        if saved is None:
            return False, None
        if request.status not in FINISHED_WELL:
            self._remove(saved)
            return False, None
        self._unfetched.append((time.monotonic() + self._keep_seconds, saved))
        return False, {"do_remote_prefill": True, KEY: saved, TOKENS: request.num_prompt_tokens}

    # The worker's side, in the order in which vLLM calls it for a step.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The KV of each layer, once at the start. The first dimension counts the blocks."""
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Before the forward pass: inject what P has computed into this engine's blocks."""
        for move in self._step.loads:
            try:
                self._inject(move)
            except (OSError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
                # vLLM does with these blocks what kv_load_failure_policy says. An exception would end the engine.
                logger.warning("The KV of %s cannot be loaded: %s", move.key, error)
                self._failed.update(move.blocks[move.skip :])

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: everything is loaded before the first layer."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing yet: this connector saves all layers at the end. A faster one would begin here, layer by layer."""

    def wait_for_save(self) -> None:
        """After the forward pass: extract the blocks of each prompt that is complete now."""
        for move in self._step.saves:
            try:
                self._extract(move)
            except (OSError, safetensors.SafetensorError) as error:
                logger.warning("The KV of %s cannot be saved, so D will compute it: %s", move.key, error)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks whose load failed in this step."""
        failed, self._failed = self._failed, set()
        return failed

    # What both sides use.

    @property
    def _step(self) -> Step:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        return step

    def _inject(self, move: Move) -> None:
        tensors = safetensors.torch.load_file(self._path(move.key, self._rank))
        blocks = torch.tensor(move.blocks[move.skip :])
        for layer, cache in self._caches.items():
            cache[blocks.to(cache.device)] = tensors[layer][move.skip :].to(cache.device)

    def _extract(self, move: Move) -> None:
        blocks = torch.tensor(move.blocks)
        tensors = {layer: cache[blocks.to(cache.device)].cpu().contiguous() for layer, cache in self._caches.items()}
        path = self._path(move.key, self._rank)
        # Renamed when it is whole, so that nobody reads half a file.
        partial = path.with_suffix(".part")
        safetensors.torch.save_file(tensors, partial)
        partial.replace(path)

    def _key_to_load(self, request: Any) -> str | None:
        """The key of a D leg whose KV is in the folder; a leg without it is computed here like any other."""
        key = _key_of(request)
        if key is None or request.kv_transfer_params.get(TOKENS) != request.num_prompt_tokens:
            return None
        return key if self._path(key, 0).exists() else None

    def _blocks_of(self, request: Any) -> int:
        return -(-request.num_prompt_tokens // self._block_size)

    def _path(self, key: str, rank: int) -> Path:
        return self._folder / f"{key}-{rank}.safetensors"

    def _remove(self, key: str) -> None:
        for path in self._folder.glob(f"{key}-*"):
            path.unlink(missing_ok=True)

    def _forget_unfetched(self, now: float) -> None:
        while self._unfetched and self._unfetched[0][0] < now:
            self._remove(self._unfetched.popleft()[1])


def _key_of(request: Any) -> str | None:
    """The key that a D leg names. It becomes part of a path, so it is letters and digits or nothing."""
    params = request.kv_transfer_params or {}
    key = params.get(KEY)
    return key if params.get("do_remote_prefill") and isinstance(key, str) and key.isalnum() else None
