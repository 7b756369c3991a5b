"""What the reference's distributed tensors give, for golden_test.cpp.

Usage: python3 make_goldens.py FILE. Runs torch.distributed.tensor over Gloo, one process a rank. Input k of a case has the elements
((7 * i + 3 * k + 5) mod 11) - 5 in row-major order, of the shape that the case says. The file has two kinds of lines below a header:

  op NAME SHAPE… = VALUES            the whole result, row-major
  at MESH PLACEMENTS… > PLACEMENTS SHAPES… DIGESTS…
                                     one layout of that case: where the inputs are, where the reference leaves the result, and of each
                                     rank's part its shape and the sum of (i + 1) * value (`-` where parts are still to be reduced)
  move SHAPE MESH FROM TO SHAPES… DIGESTS…
                                     a redistribution of input 0

A mesh is 4 or 2x2; placements have a letter an axis: R, S0, S1, …, P. Layouts that the reference refuses are left out and counted at the end.
"""
import itertools
import os
import random
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

INDEX = torch.arange(12).remainder(5).view(3, 4)
ROWS = torch.tensor([0, 2, 1, 2])
CASES = [
    ("add", [(4, 6), (4, 6)], lambda a, b: a + b),
    ("mul", [(5, 3), (5, 3)], lambda a, b: a * b),
    ("broadcast", [(4, 6), (6,)], lambda a, b: a - 2 * b),
    ("column", [(5, 4), (5, 1)], lambda a, b: a * b),
    ("relu", [(5, 3)], torch.relu),
    ("where", [(4, 6), (4, 6)], lambda a, b: torch.where(a > 0, a, b)),
    ("greater", [(4, 6), (4, 6)], lambda a, b: (a > b).float()),
    ("mm", [(4, 6), (6, 5)], torch.mm),
    ("addmm", [(5,), (4, 6), (6, 5)], torch.addmm),
    ("bmm", [(4, 3, 2), (4, 2, 5)], torch.bmm),
    ("linear", [(2, 4, 6), (4, 6), (4,)], F.linear),
    ("matmul", [(2, 5, 6), (6, 4)], torch.matmul),
    ("sum", [(5, 6)], torch.sum),
    ("sum_dim", [(5, 6, 2)], lambda a: a.sum(1)),
    ("sum_keep", [(4, 6)], lambda a: a.sum(0, keepdim=True)),
    ("mean", [(4, 6)], lambda a: a.mean(1)),
    ("amax", [(4, 6)], lambda a: a.amax(1)),
    ("cumsum", [(4, 6)], lambda a: a.cumsum(1)),
    ("softmax", [(5, 6)], lambda a: a.softmax(1)),
    ("log_softmax", [(4, 7)], lambda a: a.log_softmax(-1)),
    ("layer_norm", [(2, 4, 6), (6,), (6,)], lambda x, w, b: F.layer_norm(x, (6,), w, b)),
    ("embedding", [(5, 6)], lambda w: F.embedding(replicated(INDEX, w), w)),
    ("view", [(4, 6)], lambda a: a.view(2, 2, 6)),
    ("flatten", [(4, 2, 3)], lambda a: a.flatten(1)),
    ("heads", [(2, 3, 8)], lambda a: a.view(2, 3, 4, 2).transpose(1, 2)),
    ("transpose", [(4, 6, 3)], lambda a: a.transpose(0, 2)),
    ("permute", [(4, 3, 2)], lambda a: a.permute(2, 0, 1)),
    ("unsqueeze", [(5, 3)], lambda a: a.unsqueeze(1)),
    ("slice", [(6, 8)], lambda a: a[1:5, ::2]),
    ("select", [(4, 6)], lambda a: a.select(1, 3)),
    ("cat", [(4, 6), (2, 6)], lambda a, b: torch.cat([a, b])),
    ("stack", [(4, 3), (4, 3)], lambda a, b: torch.stack([a, b], 1)),
    ("split", [(4, 6)], lambda a: a.split(2, 1)[1]),
    ("expand", [(4, 1, 3)], lambda a: a.expand(4, 2, 3)),
    ("gather", [(3, 6)], lambda a: a.gather(1, replicated(INDEX, a))),
    ("index_select", [(4, 6)], lambda a: a.index_select(0, replicated(ROWS, a))),
    ("tril", [(5, 5)], torch.tril),
    ("attention", [(2, 4, 3, 2)] * 3, lambda q, k, v: F.scaled_dot_product_attention(q, k, v)),
]
MESHES = [(2,), (3,), (4,), (2, 2)]
MOVES = [(7, 5), (3, 2), (8, 4)]
LAYOUTS = 5


def replicated(plain, like):
    if not isinstance(like, DTensor):
        return plain
    mesh = like.device_mesh
    return DTensor.from_local(plain, mesh, [Replicate()] * mesh.ndim, run_check=False)


def whole(shape, k):
    count = torch.Size(shape).numel()
    return ((torch.arange(count) * 7 + 3 * k + 5).remainder(11) - 5).float().view(shape)


def parse(word):
    return [{"R": Replicate, "P": Partial}[p]() if p in "RP" else Shard(int(p[1:])) for p in word.split(",")]


def text(placements):
    return ",".join("R" if p.is_replicate() else "P" if p.is_partial() else f"S{p.dim}" for p in placements)


def distribute(tensor, mesh, placements):
    """As the reference's distribute_tensor, and with partial sums: coordinate 0 has what the others' ones leave."""
    for axis, placement in enumerate(placements):
        if not placement.is_partial():
            continue
        others = mesh.size(axis) - 1
        tensor = tensor - others if mesh.get_local_rank(axis) == 0 else torch.ones_like(tensor)
    local = tensor
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            parts = list(local.chunk(mesh.size(axis), placement.dim))
            empty = local.narrow(placement.dim, 0, 0)
            parts += [empty] * (mesh.size(axis) - len(parts))
            local = parts[mesh.get_local_rank(axis)]
    shape, stride = tensor.shape, tensor.contiguous().stride()
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=shape, stride=stride)


def parts_of(result):
    """Of every rank: shape and digest of its part."""
    local = result.to_local().detach().contiguous()
    flat = local.flatten().double()
    digest = float((flat * torch.arange(1, flat.numel() + 1)).sum())
    mine = ("x".join(map(str, local.shape)) or "-", f"{digest:.6g}")
    all_parts = [None] * dist.get_world_size()
    dist.all_gather_object(all_parts, mine)
    partial = any(p.is_partial() for p in result.placements)
    return " ".join(shape for shape, _ in all_parts) + " " + " ".join("-" if partial else d for _, d in all_parts)


def layouts(name, shapes, mesh):
    """All layouts of one input on one axis; else some, by chance that depends on the case alone."""
    axes = len(mesh)
    choices = [[",".join(c) for c in itertools.product([f"S{d}" for d in range(len(s))] + ["R", "P"], repeat=axes)] for s in shapes]
    every = list(itertools.product(*choices))
    return every if len(every) <= LAYOUTS else random.Random(f"{name} {mesh}").sample(every, LAYOUTS)


def run(rank, size, shape, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(29600 + size + len(shape)))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", shape)
    name_of_mesh, refused, lines = "x".join(map(str, shape)), 0, {}
    for name, shapes, function in CASES:
        lines[name] = []
        for layout in layouts(name, shapes, shape):
            inputs = [distribute(whole(s, k), mesh, parse(p)) for k, (s, p) in enumerate(zip(shapes, layout))]
            try:
                result = function(*inputs)
            except Exception:
                refused += 1
                continue
            want = function(*[whole(s, k) for k, s in enumerate(shapes)])
            if not torch.allclose(result.full_tensor(), want, atol=1e-5):
                lines[name].append(f"wrong {name_of_mesh} {' '.join(layout)}")  # the reference's own fault
                continue
            lines[name].append(f"at {name_of_mesh} {' '.join(layout)} > {text(result.placements)} {parts_of(result)}")
    moves = []
    for s in MOVES:
        places = [",".join(c) for c in itertools.product(["S0", "S1", "R", "P"], repeat=len(shape))]
        pairs = [(a, b) for a in places for b in places if a != b and "P" not in b]
        for a, b in pairs if len(pairs) < 20 else random.Random(str(s)).sample(pairs, 20):
            result = distribute(whole(s, 0), mesh, parse(a)).redistribute(mesh, parse(b))
            moves.append(f"move {'x'.join(map(str, s))} {name_of_mesh} {a} {b} {parts_of(result)}")
    if rank == 0:
        torch.save((lines, moves, refused), path)
    dist.barrier()
    dist.destroy_process_group()


def main():
    target, found = sys.argv[1], {}
    for shape in MESHES:
        size = torch.Size(shape).numel()
        path = f"{target}.{'x'.join(map(str, shape))}.tmp"
        mp.spawn(run, args=(size, shape, path), nprocs=size)
        found[shape] = torch.load(path)
        os.remove(path)
    with open(target, "w") as out:
        out.write(f"# Made by make_goldens.py with torch {torch.__version__.split('+')[0]}.\n")
        for name, shapes, function in CASES:
            values = function(*[whole(s, k) for k, s in enumerate(shapes)])
            numbers = " ".join(f"{v:.7g}" for v in values.flatten().tolist())
            out.write(f"op {name} {' '.join('x'.join(map(str, s)) for s in shapes)} = {numbers}\n")
            for shape in MESHES:
                for line in found[shape][0][name]:
                    out.write(line + "\n")
        for shape in MESHES:
            for line in found[shape][1]:
                out.write(line + "\n")
        out.write(f"# The reference refuses {sum(f[2] for f in found.values())} of the layouts tried.\n")


if __name__ == "__main__":
    main()
