"""The Python side of the tests of `penstock generate`.

`make FOLDER` writes FOLDER/dynamic.pt2 (any length of time from 2 to 12), FOLDER/fixed.pt2 (2 rows of 8 tokens), FOLDER/other.safetensors
(other weights) and FOLDER/acausal.pt2 (a model whose logits depend on later tokens), and prints the tokens that each case of CASES
generates in Python, one line per case. Exit code 77: this Python lacks torch, numpy or safetensors.
"""

import os
import sys

try:
    import numpy  # safetensors.torch needs it
    import safetensors.torch
    import torch
except ImportError:
    sys.exit(77)

# archive, weights, longest window, temperature, top k, top p, seed
CASES = [
    ("dynamic", 1, 12, 0, None, None, 0),
    ("dynamic", 1, 12, 1.5, None, None, 4),
    ("dynamic", 1, 12, 0.9, 5, None, 5),
    ("dynamic", 1, 12, 1.2, None, 0.7, 6),
    ("dynamic", 2, 12, 1.1, 9, 0.9, 7),
    ("fixed", 1, 8, 0, None, None, 0),
    ("fixed", 1, 8, 1.0, 4, 0.8, 8),
]


class Model(torch.nn.Module):
    """Attention over all tokens, or over previous ones; the logits are the second output."""

    def __init__(self, seed, causal=True):
        torch.manual_seed(seed)
        super().__init__()
        self.causal = causal
        self.token = torch.nn.Embedding(13, 8)
        self.query, self.key, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 13)

    def forward(self, tokens):
        x = 3 * self.token(tokens)
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        if self.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), float("-inf"))
        y = torch.tanh(scores.softmax(-1) @ x)
        return {"features": y, "logits": self.head(y)}


def export(model, shape, dims, path):
    program = torch.export.export(model, (torch.zeros(shape, dtype=torch.long),), dynamic_shapes={"tokens": dims} if dims else None)
    torch.export.save(program, path)
    return program.module()


def next_token(logits, temperature, top_k, top_p, generator):
    if temperature == 0:
        return int(logits.argmax())
    logits = logits / temperature
    if top_k:
        smallest = logits.sort(descending=True).values[top_k - 1]
        logits = torch.where(logits < smallest, torch.tensor(float("-inf")), logits)
    if top_p:
        kept, total = set(), 0.0
        for probability, index in sorted(zip(logits.softmax(0).tolist(), range(len(logits))), reverse=True):
            if total < top_p:
                kept.add(index)
            total += probability
        logits = torch.tensor([value if index in kept else float("-inf") for index, value in enumerate(logits.tolist())])
    return int(torch.multinomial(logits.softmax(0), 1, generator=generator))


def generate(model, longest, temperature, top_k, top_p, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = [3, 1, 4]
    for _ in range(15):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[-longest:]]))["logits"][0, -1]
        tokens.append(next_token(logits, temperature, top_k, top_p, generator))
    return tokens


def main():
    torch.set_num_threads(1)
    folder = sys.argv[2]
    path = lambda name: os.path.join(folder, name)
    time = torch.export.Dim("time", min=2, max=12)
    export(Model(1), (1, 6), {1: time}, path("dynamic.pt2"))
    export(Model(1), (2, 8), None, path("fixed.pt2"))
    export(Model(1, causal=False), (1, 8), None, path("acausal.pt2"))
    safetensors.torch.save_file(Model(2).state_dict(), path("other.safetensors"))
    for archive, weights, longest, *rest in CASES:
        print(*generate(Model(weights), longest, *rest))


main()
