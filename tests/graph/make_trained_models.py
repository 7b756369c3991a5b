"""Exports models and trains them in eager mode, as the reference for models that C++ loads and trains.

Usage: python3 make_trained_models.py FOLDER SEED. For each model, FOLDER/NAME.pt2, the initial state, and FOLDER/NAME.safetensors with:
`x.K` and `target` (inputs and targets; the first dim is the step), `OPTIMIZER.loss` (the loss of each step), `OPTIMIZER.state.NAME` (the
state_dict after the last step), `eval.PATH` (outputs of step 0 in evaluation mode), `random.PATH` (outputs of step 0 in training mode,
seeded with 7) and, for models with batch norm, `frozen.PATH` and `frozen.state.NAME` (outputs and state after one step with one batch norm
in evaluation mode). NAME.txt lists the names of parameters, buffers and the state_dict in Python's order.
"""
import copy
import math
import pathlib
import sys

import torch
import torch.nn.functional as F

from make_archives import save_program, save_tensors, tensor_outputs

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "exported"))
from make_classifiers import CLASSES, LENGTH, VOCABULARY, Bert, ResNet, export

STEPS, ROWS = 5, 8


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
    first = tuple(x[0] for x in xs)
    save_program(export(copy.deepcopy(model), first), f"{folder}/{name}.pt2")
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
