# docs/load-module.md: the user's model and an example of its input.
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

    def encode(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.encode(x))


model, example = Model(), torch.randn(4, 3)
