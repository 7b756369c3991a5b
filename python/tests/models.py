"""Models for tests of pipelines."""

from __future__ import annotations

import torch

WIDTH = 8


class Block(torch.nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 2 * WIDTH)
        self.down = torch.nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def block(stage: int) -> Block:
    """The block of a stage, always with the same values."""
    torch.manual_seed(1000 + stage)
    return Block()


def batch(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """An input and a target."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, WIDTH, generator=generator)


def dense(stages: int, rows: int, microbatches: int, steps: int = 1, seed: int = 0) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The mean loss of each step and the gradients of the model in one process, by `stage.name`."""
    model = torch.nn.Sequential(*(block(stage) for stage in range(stages)))
    losses = []
    for step in range(steps):
        x, target = batch(rows, seed + step)
        loss = torch.nn.functional.mse_loss(model(x), target)
        loss.backward()
        losses.append(loss.item())
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
