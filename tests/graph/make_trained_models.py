"""Exports models and trains them in eager mode, as the reference for models that C++ loads and trains.

Usage: python3 make_trained_models.py FOLDER SEED. For each model, FOLDER/NAME.pt2, the initial state, and FOLDER/NAME.safetensors with:
`x.K` and `target` (inputs and targets; the first dim is the step), `OPTIMIZER.loss` (the loss of each step), `OPTIMIZER.state.NAME` (the
state_dict after the last step), `eval.PATH` (outputs of step 0 in evaluation mode), `random.PATH` (outputs of step 0 in training mode,
seeded with 7) and, for models with batch norm, `frozen.PATH` and `frozen.state.NAME` (outputs and state after one step with one batch norm
in evaluation mode). NAME.txt lists the names of parameters, buffers and the state_dict in Python's order.
"""
import copy
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from make_archives import save_program, save_tensors, tensor_outputs

STEPS, ROWS, LENGTH, VOCABULARY, CLASSES = 5, 8, 6, 19, 4


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.down = None if inputs == outputs else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.layers = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x):
        return self.fc(F.adaptive_avg_pool2d(self.layers(self.stem(x)), 1).flatten(1))


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2, self.dropout = nn.LayerNorm(width), nn.LayerNorm(width), nn.Dropout(dropout)

    def forward(self, x, mask):
        batch, time, width = x.shape
        q, k, v = (f(x).view(batch, time, self.heads, width // self.heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :], dropout_p=self.dropout.p if self.training else 0.0)
        x = self.norm1(x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, time, width))))
        return self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))


class Bert(nn.Module):
    """An encoder with a language model head, tied to the embedding or not."""

    def __init__(self, tied, dropout=0.0, width=16):
        super().__init__()
        self.token, self.position, self.norm = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width), nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, 4, dropout) for _ in range(2))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, VOCABULARY)
        self.register_buffer("positions", torch.arange(LENGTH), persistent=False)
        if tied:
            self.head.weight = self.token.weight

    def forward(self, tokens, mask):
        x = self.norm(self.token(tokens) + self.position(self.positions))
        for layer in self.layers:
            x = layer(x, mask)
        return {"logits": self.head(x), "pooled": torch.tanh(self.pooler(x[:, 0]))}


class AdamW:
    """The formula of libtorch's C++ optimizer. Python's own rounds differently: it updates the mean with lerp."""

    def __init__(self, parameters, lr=0.01, betas=(0.9, 0.999), eps=1e-8, decay=0.1):
        self.items = [(p, torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
        self.lr, self.betas, self.eps, self.decay, self.steps = lr, betas, eps, decay, 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        first, second = (1 - beta**self.steps for beta in self.betas)
        for p, mean, square in self.items:
            if p.grad is None:
                continue
            p.mul_(1 - self.lr * self.decay)
            mean.mul_(self.betas[0]).add_(p.grad, alpha=1 - self.betas[0])
            square.mul_(self.betas[1]).addcmul_(p.grad, p.grad, value=1 - self.betas[1])
            p.addcdiv_(mean, (square.sqrt() / math.sqrt(second)).add_(self.eps), value=-(self.lr / first))


OPTIMIZERS = {"sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False), "adamw": AdamW}


def logits_of(output):
    return output["logits"].flatten(0, 1) if isinstance(output, dict) else output


def train(model, optimizer, xs, target):
    losses = []
    for step in range(STEPS):
        model.zero_grad()
        loss = F.cross_entropy(logits_of(model(*(x[step] for x in xs))), target[step].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def make(folder, name, model, xs, target):
    batch = torch.export.Dim("batch", min=2, max=64)
    first = tuple(x[0] for x in xs)
    program = torch.export.export(copy.deepcopy(model), first, dynamic_shapes=tuple({0: batch} for _ in xs))
    save_program(program, f"{folder}/{name}.pt2")
    tensors = {f"x.{k}": x for k, x in enumerate(xs)} | {"target": target}
    for optimizer, create in OPTIMIZERS.items():
        trained = copy.deepcopy(model)
        tensors[f"{optimizer}.loss"] = train(trained, create(trained.parameters()), xs, target)
        tensors |= {f"{optimizer}.state.{key}": value for key, value in trained.state_dict().items()}
    tensors |= {f"eval.{path}": output for path, output in tensor_outputs(copy.deepcopy(model).eval(), first, {})}
    torch.manual_seed(7)
    tensors |= {f"random.{path}": output for path, output in tensor_outputs(copy.deepcopy(model), first, {})}
    if isinstance(model, ResNet):
        frozen = copy.deepcopy(model)
        frozen.layers[0].norm1.eval()
        tensors |= {f"frozen.{path}": output for path, output in tensor_outputs(frozen, first, {})}
        tensors |= {f"frozen.state.{key}": value for key, value in frozen.state_dict().items()}
    save_tensors(f"{folder}/{name}.safetensors", tensors)
    with open(f"{folder}/{name}.txt", "w") as file:
        for kind, names in (("parameter", dict(model.named_parameters())), ("buffer", dict(model.named_buffers())), ("state", model.state_dict())):
            file.writelines(f"{kind} {key}\n" for key in names)


def main():
    torch.set_num_threads(1)
    folder, seed = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(seed)
    images, labels = torch.randn(STEPS, ROWS, 3, 12, 12), torch.randint(CLASSES, (STEPS, ROWS))
    tokens = torch.randint(VOCABULARY, (STEPS, ROWS, LENGTH))
    mask = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (STEPS, ROWS, 1))
    make(folder, "resnet", ResNet(), [images], labels)
    for name, model in (("bert_tied", Bert(True)), ("bert_untied", Bert(False)), ("bert_dropout", Bert(False, 0.2))):
        make(folder, name, model, [tokens, mask], (tokens * 3 + 1) % VOCABULARY)


if __name__ == "__main__":
    main()
