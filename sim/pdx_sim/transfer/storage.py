"""A shared directory (`ExampleConnector`): who computes a prompt saves its whole blocks, and everybody looks them up.

As in vLLM, a folder that exists is a hit, so an engine that looks while another still writes dies of what is missing;
nothing is ever deleted; and the last block, full or not, is computed anew.
"""

import asyncio
from pathlib import Path
from typing import Final

from pdx_sim.core.counters import Violation
from pdx_sim.core.sequence import KVParams, Sequence
from pdx_sim.core.tokens import Digest, Tokens, digest_of
from pdx_sim.transfer.connector import LoadError, MissError, Station
from pdx_sim.transfer.side_channel import Message

_FILE: Final = "kv"


class Storage:
    """The directory, as an engine with blocks of this size sees it.

    `whole`: only what is written to its end is found, as where a server keeps it.
    `behind`: a prompt is saved behind the engine's back, which may answer before.
    """

    def __init__(self, directory: str, block_size: int, whole: bool = False, behind: bool = False) -> None:
        self._directory = Path(directory)
        self._block_size = block_size
        self._whole = whole
        self._behind = behind
        self._saving: set[asyncio.Task[None]] = set()

    def found(self, prompt: Tokens) -> int:
        """Tokens of the prompt whose KV is there, or being written."""
        tokens = (len(prompt) - 2) // self._block_size * self._block_size
        return tokens if tokens > 0 and self._holds(self._folder(prompt[:tokens])) else 0

    def load(self, prefix: Tokens) -> Digest:
        """The digest of what was saved for these tokens; FileNotFoundError while it is being written."""
        return (self._folder(prefix) / _FILE).read_text()

    async def save(self, prompt: Tokens, seconds: float) -> None:
        """Write the prompt's whole blocks, which takes so long."""
        saving = asyncio.create_task(self._save(prompt, seconds))
        if not self._behind:
            await saving
            return
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Give up what is not saved yet."""
        for saving in tuple(self._saving):
            saving.cancel()
        await asyncio.gather(*self._saving, return_exceptions=True)

    async def _save(self, prompt: Tokens, seconds: float) -> None:
        prefix = prompt[: (len(prompt) - 1) // self._block_size * self._block_size]
        folder = self._folder(prefix)
        if prefix and not self._holds(folder):
            folder.mkdir(parents=True, exist_ok=True)
            await asyncio.sleep(seconds)
            (folder / _FILE).write_text(digest_of(prefix))

    def _holds(self, folder: Path) -> bool:
        return (folder / _FILE if self._whole else folder).exists()

    def _folder(self, prefix: Tokens) -> Path:
        return self._directory / digest_of(prefix)


class StorageConnector:
    """Both roles, between which there is no difference. Peers tell each other nothing, and nothing is kept for them."""

    def __init__(self, station: Station, storage: Storage) -> None:
        self._station = station
        self._storage = storage

    async def load(self, seq: Sequence) -> None:
        """Read the prompt's folder; one that is not whole ends the engine. Raises MissError where there is none."""
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
        await asyncio.sleep(self._station.settings.transfer_seconds * seq.slowness)
        if saved != digest_of(prefix):
            seq.digest = saved

    def finish(self, seq: Sequence) -> None:
        """P has saved before."""
        self._station.counts.prefills_finished += 1

    def dropped(self, seq: Sequence) -> None:
        """Nothing was saved of it."""

    def refused(self, params: KVParams) -> None:
        """Nobody waits to hear of it."""

    def answer(self, message: Message) -> Message:
        """No peer has anything to ask."""
        return {"error": f"no such op: {message['op']}"}

    def tick(self, now: float) -> None:
        """Nothing is ever due."""

    async def close(self) -> None:
        """Saves under way are given up."""
        await self._storage.close()
