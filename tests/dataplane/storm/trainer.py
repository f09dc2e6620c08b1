"""The model of a task: what its ranks have in memory since the last checkpoint, and the checkpoint.

A model here is the multiset of the sample ids that it was trained on. It belongs to the task as a whole, since
``rewind`` and ``commit`` do: a rank that rewound by itself would be given what another one has in its own checkpoint,
and count it twice. So the ranks of a task are one trainer, as those of a data-parallel job are:

- Every change of the model is made under one lock: a step (filter, ack into the next version), a checkpoint, a return
  to it. The system takes the lock from a rank that dies.
- A rank remembers what it was trained on, in its memory only. A checkpoint of version *v* is there once every rank has
  appended what it knows up to *v* to a file of its own, and the last of them has replaced ``state.json``. Only then
  ``commit(v)`` may be called. What a rank acks after its part of *v* is into later versions.
- A rank that starts may be one that died with a part of the model: it begins a new generation, cuts every rank's file
  to what the checkpoint has, makes the weights of the checkpoint the present ones, and only then calls ``rewind``. The
  others find the new generation when they next have the lock, forget what they remember, and give back what they hold.
  No checkpoint can come true between the two, for that needs the part of the rank that is just starting.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

RANKS = 2
CHECKPOINT_EVERY = 4


@dataclass
class State:
    """What the ranks agree on.

    Attributes:
        generation: counts the returns to a checkpoint.
        version: of the weights in memory.
        checkpoint, sizes: the version of the last checkpoint, and how much of each rank's file belongs to it.
        wanted, saved: the version of the next one, if somebody wants one, and the sizes of the files of those ranks
            that have done their part.
    """

    generation: int = 0
    version: int = 0
    checkpoint: int = 0
    sizes: list[int] = field(default_factory=lambda: [0] * RANKS)
    wanted: int | None = None
    saved: list[int | None] = field(default_factory=lambda: [None] * RANKS)


class Trainer:
    """One rank's hold on the model in ``folder``."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._rank = folder, rank
        self._generation = -1
        self._memory: list[tuple[int, Sequence[str]]] = []
        self.state = State()

    @contextlib.contextmanager
    def locked(self) -> Iterator[bool]:
        """Nobody else changes the model; whether this is still the model that this rank had a part in."""
        descriptor = os.open(self._folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self.state = read_state(self._folder)
            same = self.state.generation == self._generation
            if not same:
                self._memory.clear()
                self._generation = self.state.generation
            yield same
        finally:
            os.close(descriptor)

    # all of these under the lock ----------------------------------------------------------------------

    def return_to_checkpoint(self) -> int:
        """The model is as the checkpoint has it; its version, which is to be rewound to."""
        state = self.state
        for rank, size in enumerate(state.sizes):
            with contextlib.suppress(FileNotFoundError):
                os.truncate(_file(self._folder, rank), size)
        self.state = State(state.generation + 1, state.checkpoint, state.checkpoint, state.sizes)
        self._generation = self.state.generation
        self._memory.clear()
        self._write()
        return state.checkpoint

    def learned(self, sample_ids: Sequence[str]) -> None:
        """The weights of the next version have seen these."""
        self.state.version += 1
        self._memory.append((self.state.version, sample_ids))
        self._write()

    def save(self, *, now: bool = False) -> int | None:
        """Do one's part of a checkpoint, if one is due; its version, if that was the last part."""
        state = self.state
        since = state.version - state.checkpoint
        if state.wanted is None and (since >= CHECKPOINT_EVERY or (now and since)):
            state.wanted = state.version
            self._write()
        if state.wanted is None or state.saved[self._rank] is not None:
            return None
        state.saved[self._rank] = self._append([ids for version, ids in self._memory if version <= state.wanted])
        self._memory = [(version, ids) for version, ids in self._memory if version > (state.wanted or 0)]
        sizes = [size for size in state.saved if size is not None]
        if len(sizes) < RANKS:
            self._write()
            return None
        state.checkpoint, state.sizes = state.wanted, sizes
        state.wanted, state.saved = None, [None] * RANKS
        self._write(safely=True)
        return state.checkpoint

    def _append(self, parts: list[Sequence[str]]) -> int:
        """Add to this rank's file; its size then."""
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(_file(self._folder, self._rank), flags, 0o600)
        try:
            if parts:
                os.write(descriptor, "".join(f"{one}\n" for ids in parts for one in ids).encode())
                os.fsync(descriptor)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def _write(self, *, safely: bool = False) -> None:
        replace(self._folder / "state.json", orjson.dumps(asdict(self.state)), safely=safely)


def read_state(folder: Path) -> State:
    """What the ranks of a model agree on."""
    with contextlib.suppress(FileNotFoundError):
        return State(**orjson.loads((folder / "state.json").read_bytes()))
    return State()


def checkpointed(folder: Path) -> Counter[str]:
    """The model as its checkpoint has it."""
    model: Counter[str] = Counter()
    for rank, size in enumerate(read_state(folder).sizes):
        with contextlib.suppress(FileNotFoundError):
            model.update(_file(folder, rank).read_bytes()[:size].decode().split())
    return model


def replace(path: Path, content: bytes, *, safely: bool = False) -> None:
    """Write a file, wholly or not at all."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with fresh.open("wb") as file:
        file.write(content)
        if safely:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}"
