"""A shared directory (`ExampleConnector`): the engine that computes a prompt saves its whole blocks, and all find them.

As in vLLM, a folder that exists is a hit, so an engine that reads a folder while another still writes it dies; nothing
is ever deleted; and the last block, full or not, is computed again.
"""

import asyncio
from pathlib import Path
from typing import Final

from pdx_sim.core.connector import LoadError, MissError
from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import Sequence
from pdx_sim.core.tokens import Digest, Tokens, digest_of
from pdx_sim.transfer.connector import KVConnector, Station

_FILE: Final = "kv"


class Storage:
    """The directory, for an engine with blocks of this size.

    `whole`: only a folder that is completely written is found, as where a server keeps the KV.
    `in_background`: a prompt is saved in the background, so that the engine may answer before.
    """

    def __init__(self, directory: str, block_size: int, whole: bool = False, in_background: bool = False) -> None:
        self._directory = Path(directory)
        self._block_size = block_size
        self._whole = whole
        self._in_background = in_background
        self._saving: set[asyncio.Task[None]] = set()
        self._blocked_until = 0.0
        """On the event loop's clock."""

    def block(self, seconds: float) -> None:
        """Find nothing and save nothing for `seconds`; 0 ends it."""
        self._blocked_until = asyncio.get_running_loop().time() + seconds if seconds else 0.0

    @property
    def _is_blocked(self) -> bool:
        return asyncio.get_running_loop().time() < self._blocked_until

    def found(self, prompt: Tokens) -> int:
        """Number of the prompt's tokens whose KV is in the directory, or is being written."""
        tokens = (len(prompt) - 2) // self._block_size * self._block_size
        if self._is_blocked:
            return 0
        return tokens if tokens > 0 and self._holds(self._folder(prompt[:tokens])) else 0

    def load(self, prefix: Tokens) -> Digest:
        """The digest that was saved for these tokens; FileNotFoundError while it is being written."""
        return (self._folder(prefix) / _FILE).read_text()

    async def save(self, prompt: Tokens, seconds: float) -> None:
        """Write the prompt's whole blocks, which takes `seconds`."""
        saving = asyncio.create_task(self._save(prompt, seconds))
        if not self._in_background:
            await saving
            return
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Cancel all saves under way."""
        for saving in tuple(self._saving):
            saving.cancel()
        await asyncio.gather(*self._saving, return_exceptions=True)

    async def _save(self, prompt: Tokens, seconds: float) -> None:
        prefix = prompt[: (len(prompt) - 1) // self._block_size * self._block_size]
        folder = self._folder(prefix)
        if prefix and not self._is_blocked and not self._holds(folder):
            folder.mkdir(parents=True, exist_ok=True)
            await asyncio.sleep(seconds)
            (folder / _FILE).write_text(digest_of(prefix))

    def _holds(self, folder: Path) -> bool:
        return (folder / _FILE if self._whole else folder).exists()

    def _folder(self, prefix: Tokens) -> Path:
        return self._directory / digest_of(prefix)


class StorageConnector(KVConnector):
    """Both roles, which do the same. Peers exchange no messages, and P pins nothing for a D."""

    finds_by_prompt = True

    def __init__(self, station: Station, storage: Storage) -> None:
        super().__init__(station)
        self._storage = storage

    async def load(self, seq: Sequence) -> None:
        """Read the prompt's folder; MissError if there is none. A folder that is not complete ends the engine."""
        seq.cached = self._storage.found(seq.prompt)
        if not seq.cached:
            raise MissError
        prefix = seq.prompt[: seq.cached]
        try:
            saved = self._storage.load(prefix)
        except FileNotFoundError as error:
            self._station.counts.violate(Violation.READ_EARLY)
            self._station.on_death()
            raise LoadError(str(error)) from error
        await self._station.move(seq.cached, slowness=seq.slowness)
        if saved != digest_of(prefix):
            seq.digest = saved

    async def save(self, seq: Sequence) -> None:
        """Write the prompt's whole blocks."""
        await self._storage.save(seq.prompt, self._station.settings.transfer_seconds)

    def finish(self, seq: Sequence) -> bool:
        """Count the prefill: its KV is in the directory, so its blocks are free."""
        self._station.counts.prefills_finished += 1
        return False

    async def close(self) -> None:
        """Cancel all saves under way."""
        await self._storage.close()
