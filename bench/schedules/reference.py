"""Measures how long the reference takes to generate and lower the same schedules. Prints a JSON list."""

import json
import time

from torch.distributed.pipelining import schedules as ref


def bare(cls, ranks, per_rank, microbatches):
    """Creates a schedule object of the reference without stages, with only the fields that its generator needs."""
    it = object.__new__(cls)
    it.pp_group_size, it.n_local_stages, it._stages = ranks, per_rank, [None] * per_rank
    it._num_stages = it.num_stages = ranks * per_rank
    it._n_microbatches = microbatches
    it.number_of_rounds = max(1, microbatches // ranks)
    it.microbatches_per_round = microbatches // it.number_of_rounds
    return it


def build(name, ranks, per_rank, microbatches):
    it = bare(ref.get_schedule_class(name), ranks, per_rank, microbatches)
    it.pipeline_order = {r: it._calculate_single_rank_operations(r) for r in range(ranks)}
    if name == "InterleavedZeroBubble":
        it.pipeline_order = it._add_bubbles_to_actions(it._num_stages)
    style = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
    mapping = ref.generate_stage_to_rank_mapping(ranks, ranks * per_rank, style)
    lists = {}
    for rank, order in it.pipeline_order.items():
        lists[rank] = ref._add_reduce_grad(ref._add_unshard_reshard(order), microbatches)
    return ref._add_send_recv(lists, stage_to_rank=mapping.__getitem__, num_stages=ranks * per_rank)


results = []
for name in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
    seconds = float("inf")
    for _ in range(2):  # the best of two, compared with our median: load on the machine must not favour Penstock
        start = time.perf_counter()
        lowered = build(name, 64, 2, 256)
        seconds = min(seconds, time.perf_counter() - start)
    results.append({"schedule": name, "actions": sum(map(len, lowered.values())), "generate_and_lower_s": seconds})
print(json.dumps(results))
