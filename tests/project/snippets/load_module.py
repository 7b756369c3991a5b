# docs/load-module.md: the user's model and an example of its input.
import torch

model, example = torch.nn.Linear(3, 2), torch.randn(4, 3)
