#!/usr/bin/env python3
"""Writes the reference's tables, compute and lowered, as readable text next to this script, and wide.txt: hashes of the tables
of a thousand random shapes of up to 16 ranks, 6 stages per rank and 64 microbatches.

Needs torch 2.13; the tests only read its output. Only the tables of the reference's schedules are used: their
constructors require stages, so they get substitutes with the counts. Run: python3 make_golden.py
"""

import pathlib
import random
import types

from torch.distributed.pipelining import schedules as ref

HERE = pathlib.Path(__file__).parent


def bare(cls, ranks, per_rank, microbatches):
    """An instance without stages: only the counts from which the reference computes its tables."""
    it = object.__new__(cls)
    it.pp_group_size = ranks
    it.n_local_stages = per_rank
    it._stages = [None] * per_rank
    it._num_stages = it.num_stages = ranks * per_rank
    it._n_microbatches = microbatches
    it.number_of_rounds = max(1, microbatches // ranks)
    it.microbatches_per_round = microbatches // it.number_of_rounds
    return it


def compute(name, ranks, per_rank, microbatches):
    cls = ref.get_schedule_class(name)
    it = bare(cls, ranks, per_rank, microbatches)
    if name == "GPipe":
        order = it._get_pipeline_order()
        return {r: [a for a in order[r] if a.computation_type != ref.REDUCE_GRAD] for r in order}
    if name in ("Interleaved1F1B", "InterleavedZeroBubble") and microbatches % it.number_of_rounds:
        return None
    if name == "DualPipeV" and microbatches < it._num_stages:
        return None
    it.pipeline_order = {r: it._calculate_single_rank_operations(r) for r in range(ranks)}
    if name == "InterleavedZeroBubble":
        it.pipeline_order = it._add_bubbles_to_actions(it._num_stages)
    return it.pipeline_order


def one_f_one_b(ranks, microbatches):
    """The order of the reference's executor for 1F1B, recorded by running it on a stage that only logs its calls."""
    orders = {}
    for rank in range(ranks):
        log = []
        stage = types.SimpleNamespace(
            stage_index=rank,
            is_last=rank == ranks - 1,
            get_fwd_recv_ops=lambda m: [],
            get_fwd_send_ops=lambda m: [],
            get_bwd_recv_ops=lambda m: [],
            get_bwd_send_ops=lambda m: [],
            forward_one_chunk=lambda m, *a, log=log, r=rank, **k: log.append(ref._Action(r, ref.FORWARD, m)),
            backward_one_chunk=lambda m, *a, log=log, r=rank, **k: log.append(ref._Action(r, ref.FULL_BACKWARD, m)),
            perform_reduce_grad=lambda *a: None,
        )
        it = object.__new__(ref.Schedule1F1B)
        it._stage, it._num_stages, it._n_microbatches = stage, ranks, microbatches
        it.scale_grads, it._loss_fn, it._internal_losses = True, None, []
        it._check_inputs = lambda a, k, t, l: ([()] * microbatches, [{}] * microbatches)
        it._initialize_stage = lambda *a, **k: None
        it._update_losses = lambda *a, **k: None
        it._step_microbatches()
        orders[rank] = log
    return orders


def lower(order, stages, stage_to_rank, microbatches):
    lists = {}
    for rank in order:
        lists[rank] = ref._add_unshard_reshard(list(order[rank]))
        lists[rank] = ref._add_reduce_grad(lists[rank], microbatches)
    return ref._add_send_recv(lists, stage_to_rank=stage_to_rank.__getitem__, num_stages=stages)


def row(actions):
    return ",".join("" if a is None else str(a) for a in actions).rstrip(",")


def shapes(name):
    per_rank = {"GPipe": [1], "1F1B": [1], "ZBVZeroBubble": [2], "DualPipeV": [2]}.get(name, [1, 2, 3, 4])
    for ranks in (1, 2, 3, 4, 8):
        for v in per_rank:
            for m in (1, 2, 3, 4, 6, 8, 12, 16):
                if ranks * v * m <= 96:
                    yield ranks, v, m
    if name not in ("GPipe", "1F1B"):
        yield 16, 2, 32  # stage numbers beyond 16, where the order of a Python set is not the numbers'


NAMES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")


def fnv(text):
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def wide():
    random.seed(4)
    out = ["# schedule, ranks, stages a rank, microbatches, FNV-1a of the compute and of the lowered table; by make_golden.py"]
    while len(out) < 1001:
        name = random.choice(NAMES)
        ranks, m = random.randint(1, 16), random.randint(1, 64)
        v = {"GPipe": 1, "1F1B": 1, "ZBVZeroBubble": 2, "DualPipeV": 2}.get(name) or random.randint(1, 6)
        order = one_f_one_b(ranks, m) if name == "1F1B" else compute(name, ranks, v, m)
        if order is None:
            continue
        style = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
        mapping = ref.generate_stage_to_rank_mapping(ranks, ranks * v, style)
        hashes = [fnv("".join(row(order[r]) + "\n" for r in range(ranks)))]
        lowered = lower(order, ranks * v, mapping, m)
        hashes.append(fnv("".join(row(lowered[r]) + "\n" for r in range(ranks))))
        out.append(f"{name} {ranks} {v} {m} {hashes[0]} {hashes[1]}")
    (HERE / "wide.txt").write_text("\n".join(out) + "\n")


def main():
    for name in NAMES:
        style = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
        out = [f"# {name}: tables of torch.distributed.pipelining 2.13, made by make_golden.py"]
        for ranks, v, m in shapes(name):
            order = one_f_one_b(ranks, m) if name == "1F1B" else compute(name, ranks, v, m)
            if order is None:
                continue
            mapping = ref.generate_stage_to_rank_mapping(ranks, ranks * v, style)
            out.append(f"\n[{ranks} ranks, {v} stages a rank, {m} microbatches: compute]")
            out += [row(order[r]) for r in range(ranks)]
            if ranks * v * m <= 48 or ranks == 16:
                out.append(f"[{ranks} ranks, {v} stages a rank, {m} microbatches: lowered]")
                lowered = lower(order, ranks * v, mapping, m)
                out += [row(lowered[r]) for r in range(ranks)]
        (HERE / f"{name}.txt").write_text("\n".join(out) + "\n")
    out = ["# stage -> rank: generate_stage_to_rank_mapping of torch.distributed.pipelining 2.13, made by make_golden.py"]
    for style in ("loop", "v"):
        for ranks in range(1, 17):
            for stages in range(ranks, 65):
                if style == "v" and stages % ranks:
                    continue
                mapping = ref.generate_stage_to_rank_mapping(ranks, stages, style)
                out.append(f"{style} {ranks} {stages}: " + " ".join(str(mapping[s]) for s in range(stages)))
    (HERE / "placement.txt").write_text("\n".join(out) + "\n")
    wide()


if __name__ == "__main__":
    main()
