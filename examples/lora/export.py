"""Exports a model of the Llama family and writes data to train it on: the first step of fine_tune.sh, and the only one that needs the
source of the model.

Usage: python3 export.py FOLDER [--plain]. Writes model.pt2, which maps tokens [batch, time] to logits, and data.safetensors with the
tensors `input_ids` and `target`.

The model is a LlamaForCausalLM of the Python package transformers, with a tiny configuration and random weights, so that nothing has to
be downloaded. For a real model, replace `llama()` by `Logits.from_pretrained(NAME)` and `examples()` by your own
tokens. With --plain, or without transformers, the model is the equivalent PyTorch module below.
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY, WIDTH, HIDDEN, LAYERS, HEADS, LENGTH, ROWS = 61, 32, 64, 4, 4, 12, 64


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotate(x):
    """Rotary positions of heads [batch, heads, time, size]."""
    half = x.shape[-1] // 2
    speed = 10000.0 ** (-torch.arange(half) / half)
    angle = torch.outer(torch.arange(x.shape[2]), speed).repeat(1, 2)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos() + turned * angle.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (layer(x).view(batch, time, HEADS, width // HEADS).transpose(1, 2) for layer in (self.q_proj, self.k_proj, self.v_proj))
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, time, width))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(), Attention()
        self.post_attention_layernorm, self.mlp = RMSNorm(), FeedForward()

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = RMSNorm()

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class PlainLlama(nn.Module):
    """The modules of LlamaForCausalLM, under the same names."""

    def __init__(self):
        super().__init__()
        self.model, self.lm_head = Decoder(), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        return self.lm_head(self.model(input_ids))


def llama(plain):
    torch.manual_seed(1)
    if not plain:
        try:
            from transformers import LlamaConfig, LlamaForCausalLM
        except ImportError:
            plain = True
    if plain:
        return PlainLlama()

    class Logits(LlamaForCausalLM):
        """Returns only the logits: the usual output has a type that only programs with transformers can load."""

        def forward(self, input_ids):
            return super().forward(input_ids, use_cache=False).logits

    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=HIDDEN, num_hidden_layers=LAYERS,
                         num_attention_heads=HEADS, max_position_embeddings=4 * LENGTH, tie_word_embeddings=False,
                         initializer_range=0.2)
    return Logits(config)


def examples():
    """Sequences that count up by 1 to 4 from any token; the target of a position is the next token."""
    generator = torch.Generator().manual_seed(2)
    start, stride = (torch.randint(low, high, (ROWS, 1), generator=generator) for low, high in ((0, VOCABULARY), (1, 5)))
    tokens = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
    return {"input_ids": tokens[:, :-1].contiguous(), "target": tokens[:, 1:].contiguous()}


def main():
    from safetensors.torch import save_file

    folder = sys.argv[1]
    model = llama("--plain" in sys.argv[2:])
    data = examples()
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(model, (), {"input_ids": data["input_ids"][:4]}, dynamic_shapes={"input_ids": {0: batch}})
    torch.export.save(program, f"{folder}/model.pt2")
    save_file(data, f"{folder}/data.safetensors")
    print(f"exported {type(model).__name__}")


if __name__ == "__main__":
    main()
