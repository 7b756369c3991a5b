"""A pipeline of hand-written stages. Start it with torchrun or `penstock run`:

    torchrun --nproc-per-node 2 stages.py [SCHEDULE] [STAGES_PER_RANK]
"""

import sys

import torch
import torch.distributed as dist
from penstock.pipelining import PipelineStage
from penstock.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

WIDTH, ROWS, MICROBATCHES, STEPS = 32, 64, 8, 5


def make_stage_module(stage: int) -> torch.nn.Module:
    torch.manual_seed(stage)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))


def stage_indices(schedule: type, rank: int, ranks: int, per_rank: int) -> list[int]:
    if schedule.__name__ in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        return [rank, 2 * ranks - 1 - rank]
    return [rank + i * ranks for i in range(per_rank)]


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule_class = get_schedule_class(sys.argv[1] if len(sys.argv) > 1 else "1F1B")
    multi = issubclass(schedule_class, PipelineScheduleMulti)
    indices = stage_indices(schedule_class, rank, ranks, int(sys.argv[2]) if len(sys.argv) > 2 else 2 if multi else 1)
    num_stages = ranks * len(indices)

    modules = [make_stage_module(index) for index in indices]
    stages = [PipelineStage(m, i, num_stages, torch.device("cpu")) for m, i in zip(modules, indices, strict=True)]
    schedule = schedule_class(stages if multi else stages[0], MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.5)

    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 + step)
        x = torch.randn(ROWS, WIDTH, generator=generator)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        if 0 in indices and num_stages - 1 in indices:
            schedule.step(x, target=x.flip(1), losses=losses)
        elif 0 in indices:
            schedule.step(x)
        else:
            schedule.step(target=x.flip(1) if num_stages - 1 in indices else None, losses=losses)
        optimizer.step()
        if losses:
            print(f"step {step} loss {torch.stack(losses).mean().item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
