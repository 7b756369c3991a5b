"""A pipeline of a traced model. Start it with torchrun or `penstock run`:

    torchrun --nproc-per-node 2 traced.py
"""

import torch
import torch.distributed as dist
from penstock.pipelining import ScheduleGPipe, SplitPoint, pipeline

WIDTH, ROWS, MICROBATCHES, STEPS = 32, 64, 4, 5


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(100, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.head = torch.nn.Linear(WIDTH, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


def main() -> None:
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    example = torch.zeros(ROWS // MICROBATCHES, 16, dtype=torch.long)
    split = {f"layers.{4 * i // ranks}": SplitPoint.BEGINNING for i in range(1, ranks)}
    pipe = pipeline(Model(), mb_args=(example,), split_spec=split)
    stage = pipe.build_stage(rank, torch.device("cpu"))

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=loss_fn)
    optimizer = torch.optim.AdamW(stage.submod.parameters(), lr=0.01)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 + step)
        tokens = torch.randint(100, (ROWS, 16), generator=generator)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens)
        elif rank == ranks - 1:
            schedule.step(target=tokens.flip(1), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        if losses:
            print(f"step {step} loss {torch.stack(losses).mean().item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
