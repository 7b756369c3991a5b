"""The worlds of pipelines: one for each process group, over shared memory, Gloo or NCCL."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from typing import Any

import torch
import torch.distributed as dist
from penstock import _torch
from penstock.errors import PeerFailed, TimeoutError
from torch._C._distributed_c10d import PrefixStore

REJOIN_SECONDS = 2.0
"""How long a rank waits for one that gave up outside of a step: time for it to go on with its next step."""


def _timeout() -> float:
    """How long a rank waits for the others, in seconds: the limit of the operations of the runtime."""
    return float(os.environ.get("PENSTOCK_TIMEOUT", 300))


class GroupWorld:
    """The ranks of a process group as a world of Penstock, which notices failed ranks."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        self._rank, self._store = rank, None
        if size > 1:
            base = dist.distributed_c10d._get_process_group_store(group)
            number = base.add(f"penstock/{group.group_name}/joined/{rank}", 1)  # equal on all ranks: they join together
            self._store = PrefixStore(f"penstock/{group.group_name}/{number}", base)
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        self._world = _torch.World.join(self._store, rank, size, local_rank, "auto", str(device), None)
        self._failed = False
        self._votes = 0
        self.generation = 0
        """Counts the failures that the world recovered from."""

    @property
    def handle(self) -> Any:
        """The world of the extension."""
        return self._world

    @property
    def size(self) -> int:
        return int(self._world.size)

    @property
    def backend(self) -> str:
        """The transport: `shm`, `gloo`, `nccl`, or `threads` for a single rank."""
        return str(self._world.backend)

    def fail(self, cause: str, *, outside: bool = False) -> None:
        """Makes the current or next operation of every other rank raise PeerFailed.

        `outside`: this rank took no part in a step. If it comes back soon, ranks that wait for it join it again instead.
        """
        if self._store is not None:
            self._failed = True
            if outside:
                with contextlib.suppress(RuntimeError):  # the process of the store may have ended
                    self._store.set(self._key("outside", self._rank), "1")
            self._world.fail(cause)

    def mark_failed(self) -> None:
        """An operation raised: the next step joins the ranks again."""
        self._failed = self.size > 1

    def ensure_usable(self) -> None:
        """After a failure, joins the ranks again. Collective."""
        if self._store is None or not self._failed:
            return
        self._store.set(self._key("rejoins", self._rank), "1")
        self._world.rebuild()
        self._failed = False
        self._votes = 0
        self.generation += 1

    def may_rejoin(self, error: PeerFailed) -> bool:
        """Whether the failed rank was outside of a step, and joins the ranks again now. Then so must this rank."""
        if self._store is None or not self._store.check([self._key("outside", error.peer)]):
            return False
        deadline = time.monotonic() + REJOIN_SECONDS
        while not self._store.check([self._key("rejoins", error.peer)]):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        self._failed = True
        return True

    def _key(self, what: str, rank: int) -> str:
        return f"{what}/{self.generation}/{rank}"

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank. Collective."""
        if self._store is None:
            return flag
        self._votes += 1
        keys = [f"vote/{self.generation}/{self._votes}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self._rank], str(int(flag)))
        start = time.monotonic()
        while not self._store.check(keys):
            self._world.check()  # raises if another rank failed before it voted
            if time.monotonic() - start > _timeout():
                missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                raise TimeoutError(
                    f"rank {self._rank} prepares a step since {time.monotonic() - start:.0f} s, but ranks {missing} do not",
                    hint="every rank of the pipeline must call step or eval of the same schedule; PENSTOCK_TIMEOUT sets the limit",
                )
            time.sleep(0.001)
        return any(self._store.get(key) == b"1" for key in keys)

    def close(self) -> None:
        self._world.close()


_worlds: weakref.WeakKeyDictionary[dist.ProcessGroup, GroupWorld] = weakref.WeakKeyDictionary()
_process = os.getpid()


def is_joined(group: dist.ProcessGroup | None) -> bool:
    """Whether the ranks of the group already form a world."""
    chosen = group if group is not None else dist.distributed_c10d._get_default_group()
    return chosen in _worlds


def world_of(group: dist.ProcessGroup | None, device: torch.device) -> GroupWorld:
    """Returns the world of a process group. Collective at the first call for the group."""
    chosen = group if group is not None else dist.distributed_c10d._get_default_group()
    world = _worlds.get(chosen)
    if world is None:
        world = _worlds[chosen] = GroupWorld(chosen, device)
        weakref.finalize(chosen, world.close)  # destroy_process_group ends the store that the world uses
    return world


@atexit.register
def _close_all() -> None:
    if os.getpid() == _process:  # not in a child that was forked
        for world in list(_worlds.values()):
            world.close()
