"""Runs a function on several ranks, each in a process of its own, with a Gloo process group."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any


def _main(function: Callable[..., Any], rank: int, size: int, store: str, pipe: Connection, args: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
        result = function(rank, size, *args)
        pipe.send_bytes(pickle.dumps(("result", result)))  # not `send`, which would share the memory of tensors
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        pipe.send_bytes(pickle.dumps(("error", traceback.format_exc())))
        raise SystemExit(1) from None


class RankEnded(RuntimeError):
    """A rank ended without a result, as if it was killed. `results` has those of the other ranks."""

    def __init__(self, rank: int, results: dict[int, Any]) -> None:
        super().__init__(f"rank {rank} ended without a result")
        self.results = results


def run(function: Callable[..., Any], size: int, *args: Any, timeout: float = 180, method: str = "forkserver") -> list[Any]:
    """Returns the result of `function(rank, size, *args)` of every rank.

    Raises if a rank raised, after the timeout, or RankEnded once the other ranks have returned. By default, the processes
    are forked from one that has only imported torch and the package, which takes seconds.
    """
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["penstock.pipelining", "torch.distributed.fsdp", "models"])
    with tempfile.TemporaryDirectory() as directory:
        store = str(pathlib.Path(directory) / "store")
        pipes, processes = [], []
        for rank in range(size):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_main, args=(function, rank, size, store, theirs, args), daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        try:
            return _collect(pipes, timeout)
        finally:
            for process in processes:
                process.join(timeout=20)
                if process.is_alive():
                    process.kill()


def _collect(pipes: list[Connection], timeout: float) -> list[Any]:
    results: dict[int, Any] = {}
    ended: set[int] = set()
    while len(results) + len(ended) < len(pipes):
        ready = wait([pipe for rank, pipe in enumerate(pipes) if rank not in results | dict.fromkeys(ended)], timeout)
        if not ready:
            missing = [rank for rank in range(len(pipes)) if rank not in results and rank not in ended]
            raise TimeoutError(f"ranks {missing} did not finish within {timeout} s")
        for pipe in ready:
            rank = pipes.index(pipe)  # type: ignore[arg-type]
            try:
                kind, value = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
            except EOFError:
                ended.add(rank)
                continue
            if kind == "error":
                raise RuntimeError(f"rank {rank} raised:\n{value}")
            results[rank] = value
    if ended:
        raise RankEnded(min(ended), results)
    return [results[rank] for rank in range(len(pipes))]
