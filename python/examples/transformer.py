"""Pipeline and sharded data parallelism of a transformer, in the style of large training programs: a device mesh, model
parts by layer, fully_shard on each part, losses summed over tokens. Start it with torchrun or `penstock run`:

    torchrun --nproc-per-node 4 transformer.py [SCHEDULE]
"""

import sys

import torch
import torch.distributed as dist
from penstock.pipelining import PipelineStage
from penstock.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

VOCABULARY, WIDTH, LAYERS, TOKENS, ROWS, MICROBATCHES, STEPS = 64, 32, 4, 8, 16, 4, 4


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(torch.nn.Module):
    """A part of the model: the missing ends are None."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding: torch.nn.Module | None = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleDict({str(i): Layer() for i in range(LAYERS)})
        self.output: torch.nn.Module | None = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x) if self.embedding is not None else x
        for layer in self.layers.values():
            x = layer(x)
        return self.output(x) if self.output is not None else x


def model_part(stage: int, num_stages: int) -> Transformer:
    torch.manual_seed(0)
    part = Transformer()
    keep = range(stage * LAYERS // num_stages, (stage + 1) * LAYERS // num_stages)
    for index in range(LAYERS):
        if index not in keep:
            del part.layers[str(index)]
    if stage > 0:
        part.embedding = None
    if stage < num_stages - 1:
        part.output = None
    return part


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"], mesh["dp"]
    schedule_class = get_schedule_class(sys.argv[1] if len(sys.argv) > 1 else "Interleaved1F1B")
    multi = issubclass(schedule_class, PipelineScheduleMulti)
    rank = pp.get_local_rank()
    v_shaped = schedule_class.__name__ == "ScheduleZBVZeroBubble"
    indices = ([rank, 3 - rank] if v_shaped else [rank, rank + 2]) if multi else [rank]
    num_stages = 2 * len(indices)

    parts = [model_part(index, num_stages) for index in indices]
    for part in parts:
        for layer in part.layers.values():
            fully_shard(layer, mesh=dp, reshard_after_forward=False)
        fully_shard(part, mesh=dp, reshard_after_forward=False)
    stages = [
        PipelineStage(part, index, num_stages, torch.device("cpu"), group=pp.get_group())
        for part, index in zip(parts, indices, strict=True)
    ]
    tokens_of_batch = ROWS * TOKENS

    def loss_fn(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum")
        return loss / tokens_of_batch

    schedule = schedule_class(stages if multi else stages[0], MICROBATCHES, loss_fn=loss_fn, scale_grads=False)
    optimizers = [torch.optim.AdamW(part.parameters(), lr=0.01) for part in parts]
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * step + dp.get_local_rank())
        tokens = torch.randint(VOCABULARY, (ROWS, TOKENS + 1), generator=generator)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        losses: list[torch.Tensor] | None = [] if any(stage.is_last for stage in stages) else None
        for optimizer in optimizers:
            optimizer.zero_grad()
        if any(stage.is_first for stage in stages):
            schedule.step(inputs, target=targets if losses is not None else None, losses=losses)
        else:
            schedule.step(target=targets if losses is not None else None, losses=losses)
        for optimizer in optimizers:
            optimizer.step()
        if losses:
            loss = torch.stack(losses).sum()
            dist.all_reduce(loss, op=dist.ReduceOp.AVG if dist.get_backend() == "nccl" else dist.ReduceOp.SUM, group=dp.get_group())
            if dp.get_local_rank() == 0:
                print(f"step {step} loss {loss.item() / dp.size():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
