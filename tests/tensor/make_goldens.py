#!/usr/bin/env python3
"""Writes goldens.txt: the results of torch.distributed.tensor for a generated sweep of operators x placements x
shapes x meshes. goldens_test.cpp reads the file and runs the same calls on our distributed tensors.

    make_goldens.py OUT [--seed N] [--layouts K] [--only OP...]

Four ranks over Gloo, each a spawned process. Elements are small integers, given by formulas known to both
sides, so that sums and products are exact in any order. The file has one block per operator:

    op aten::mm                          schema name, with its overload
    in small 6,5                         kind of values, sizes; one line per input
    args $0 $1                           in the order of the schema; $k is an input
    value exact float32 6,4: 1 2 ...     one line per result of the same call on plain tensors
    grad exact 0: 3 4 ...                gradient of an input: that of the sum of all results times weights
    on 2: S0 R -> S0 | 3,4:17 3,4:33     inputs' placements -> result's | each rank's sizes and checksum

`-> refused` and `-> differs` mark layouts in which the reference raises, or gives other values than on plain
tensors. Partial results have no checksum: how they are split is an implementation detail.
"""
import argparse
import datetime
import itertools
import os
import random
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WAIT = 30  # seconds for a rank that raised while the others went on
MESHES = [("2", (2,)), ("3", (3,)), ("4", (4,)), ("2x2", (2, 2))]

# operator, inputs ("kind sizes"), arguments; `exact` if results are integers, independent of the order of summation.
OPS = [
    ("add.Tensor", ["small 4,6", "small 4,6"], "$0 $1", True),
    ("add.Tensor", ["small 5,3", "small 5,3"], "$0 $1 alpha=2", True),
    ("add.Tensor", ["small 4,6", "small 6"], "$0 $1", True),
    ("mul.Tensor", ["small 5,6", "small 5,1"], "$0 $1", True),
    ("mul.Tensor", ["small 2,1,5", "small 3,1"], "$0 $1", True),
    ("sub.Tensor", ["small 7,2", "small 7,2"], "$0 $1", True),
    ("div.Tensor", ["small 4,6", "big 4,6"], "$0 $1", False),
    ("mul.Scalar", ["small 5,3"], "$0 3", True),
    ("add.Scalar", ["small 5,3"], "$0 2", True),
    ("neg", ["small 7"], "$0", True),
    ("relu", ["small 5,4"], "$0", True),
    ("abs", ["small 6,2"], "$0", True),
    ("maximum", ["distinct 5,4", "distinct 5,4"], "$0 $1", True),
    ("pow.Tensor_Scalar", ["small 4,5"], "$0 2", True),
    ("clamp", ["small 4,5"], "$0 -1 2", True),
    ("gelu", ["small 4,6"], "$0", False),
    ("tanh", ["small 5,3"], "$0", False),
    ("sigmoid", ["small 5,3"], "$0", False),
    ("silu", ["small 4,4"], "$0", False),
    ("exp", ["small 4,4"], "$0", False),
    ("rsqrt", ["big 4,4"], "$0", False),
    ("gt.Scalar", ["small 5,4"], "$0 0", True),
    ("eq.Tensor", ["small 5,4", "small 5,4"], "$0 $1", True),
    ("where.self", ["mask 4,6", "small 4,6", "small 4,6"], "$0 $1 $2", True),
    ("masked_fill.Scalar", ["small 4,6", "mask 4,6"], "$0 $1 7", True),
    ("lerp.Scalar", ["small 4,6", "small 4,6"], "$0 $1 2.0", True),
    ("addcmul", ["small 4,5", "small 4,5", "small 4,5"], "$0 $1 $2 value=2", True),
    ("to.dtype", ["small 5,4"], "$0 float64", True),
    ("add_.Tensor", ["write 4,6", "fixed 4,6"], "$0 $1", True),
    ("mul_.Tensor", ["write 5,3", "fixed 5,3"], "$0 $1", True),
    ("mm", ["small 4,6", "small 6,5"], "$0 $1", True),
    ("mm", ["small 7,3", "small 3,5"], "$0 $1", True),
    ("addmm", ["small 5", "small 4,6", "small 6,5"], "$0 $1 $2", True),
    ("bmm", ["small 4,3,6", "small 4,6,5"], "$0 $1", True),
    ("baddbmm", ["small 3,2,4", "small 3,2,5", "small 3,5,4"], "$0 $1 $2", True),
    ("matmul", ["small 2,5,6", "small 6,4"], "$0 $1", True),
    ("matmul", ["small 2,4,3,6", "small 2,4,6,5"], "$0 $1", True),
    ("matmul", ["small 5,6", "small 6"], "$0 $1", True),
    ("linear", ["small 2,5,6", "small 4,6", "small 4"], "$0 $1 $2", True),
    ("linear", ["small 7,6", "small 5,6"], "$0 $1", True),
    ("sum", ["small 5,6"], "$0", True),
    ("sum.dim_IntList", ["small 5,6,2"], "$0 [1]", True),
    ("sum.dim_IntList", ["small 4,3"], "$0 [0,1] true", True),
    ("mean.dim", ["fours 4,6"], "$0 [1]", False),
    ("mean", ["fours 5,6"], "$0", False),
    ("amax", ["distinct 4,8"], "$0 [1]", True),
    ("amin", ["distinct 5,6"], "$0 [0]", True),
    ("max.dim", ["distinct 5,6"], "$0 1", True),
    ("argmax", ["distinct 5,6"], "$0 1", True),
    ("any", ["mask 4,6"], "$0", True),
    ("all.dim", ["mask 4,6"], "$0 1", True),
    ("var.correction", ["small 5,6"], "$0 [1] correction=1", False),
    ("linalg_vector_norm", ["small 5,6"], "$0 2", False),
    ("cumsum", ["small 4,6"], "$0 1", True),
    ("prod.dim_int", ["fixed 4,6"], "$0 1", True),
    ("view", ["small 4,6"], "$0 [2,2,6]", True),
    ("view", ["small 4,6"], "$0 [24]", True),
    ("view", ["small 2,5,8"], "$0 [2,5,4,2]", True),
    ("view", ["small 2,5,4,2"], "$0 [2,5,8]", True),
    ("reshape", ["small 5,3,2"], "$0 [15,2]", True),
    ("flatten.using_ints", ["small 4,3,2"], "$0 0 1", True),
    ("transpose.int", ["small 4,6,3"], "$0 0 2", True),
    ("permute", ["small 4,5,3"], "$0 [2,0,1]", True),
    ("t", ["small 7,4"], "$0", True),
    ("unsqueeze", ["small 4,6"], "$0 1", True),
    ("squeeze.dim", ["small 4,1,6"], "$0 1", True),
    ("slice.Tensor", ["small 6,8"], "$0 0 1 5", True),
    ("slice.Tensor", ["small 6,8"], "$0 1 0 8 2", True),
    ("select.int", ["small 6,5"], "$0 1 3", True),
    ("expand", ["small 4,1,6"], "$0 [4,3,6]", True),
    ("split.Tensor", ["small 4,6"], "$0 2 1", True),
    ("chunk", ["small 7,4"], "$0 3 0", True),
    ("unbind.int", ["small 3,4,2"], "$0 0", True),
    ("cat", ["small 4,6", "small 2,6"], "[$0,$1] 0", True),
    ("cat", ["small 4,3", "small 4,2"], "[$0,$1] 1", True),
    ("stack", ["small 4,6", "small 4,6"], "[$0,$1] 1", True),
    ("repeat", ["small 4,3"], "$0 [1,2]", True),
    ("tril", ["small 4,5,5"], "$0", True),
    ("softmax.int", ["small 5,6"], "$0 1", False),
    ("log_softmax.int", ["small 5,6"], "$0 -1", False),
    ("layer_norm", ["small 2,5,6", "small 6", "small 6"], "$0 [6] $1 $2", False),
    ("rms_norm", ["small 2,5,6", "small 6"], "$0 [6] $1", False),
    ("embedding", ["small 7,6", "index7 3,4"], "$0 $1", True),
    ("cross_entropy_loss", ["small 6,7", "index7 6"], "$0 $1", False),
    ("nll_loss", ["small 6,7", "index7 6"], "$0 $1 none 2", True),
    ("gather", ["small 3,6", "index6 3,4"], "$0 1 $1", True),
    ("index_select", ["small 7,5", "index7 4"], "$0 0 $1", True),
    ("index.Tensor", ["small 4,6", "index4 5"], "$0 [$1]", True),
    ("scaled_dot_product_attention", ["small 2,4,5,8"] * 3, "$0 $1 $2 none 0.0 true", False),
    # Redistribution: the placements of the result are random, too.
    ("redistribute", ["small 8,4"], "$0", True),
    ("redistribute", ["small 5,3"], "$0", True),
    ("redistribute", ["small 1,7"], "$0", True),
    ("redistribute", ["small 3,2,5"], "$0", True),
    ("scatter.value", ["small 5,6", "index6 5,3"], "$0 1 $1 7", True),
    ("scatter_add", ["small 5,6", "index6 5,3", "small 5,3"], "$0 1 $1 $2", True),
    ("index_add", ["small 7,4", "index7 3", "small 3,4"], "$0 0 $1 $2", True),
]


# ---- numbers

def sizes_of(text):
    return [int(n) for n in text.split(",")] if text else []


def numbers(kind, sizes, which, seed):
    """Element i of input `which`; goldens_test.cpp has the same formulas."""
    count = 1
    for n in sizes:
        count *= n
    i = torch.arange(count, dtype=torch.int64)
    mix = (i * i * 5 + i * 3 + which * 7 + seed * 11) % 9
    if kind.startswith("index"):
        return (mix * 5 + i) .remainder(int(kind[5:])).view(sizes)
    if kind == "mask":
        return (mix > 3).view(sizes)
    if kind == "distinct":  # no two alike, so that a maximum is one element
        return (((i * 37 + which * 11 + seed) % 101) - 50).float().view(sizes)
    if kind == "big":
        return (mix + 1).float().view(sizes)
    if kind == "fours":
        return ((mix - 4) * 4).float().view(sizes)
    return (mix - 4).float().view(sizes)


def has_gradient(kind):
    return kind in ("small", "distinct", "big", "fours")


# ---- placements

def text_of(placements):
    names = {"sum": "P", "avg": "Pavg", "max": "Pmax", "min": "Pmin"}
    out = []
    for p in placements:
        kind = type(p).__name__
        if kind == "Shard":
            out.append(f"S{p.dim}")
        elif kind == "Replicate":
            out.append("R")
        elif kind in ("Partial", "MaskPartial", "_MaskPartial"):
            out.append(names[p.reduce_op])
        else:
            return None  # a placement that only the reference has
    return ",".join(out)


def placement(name):
    from torch.distributed.tensor import Partial, Replicate, Shard
    if name[0] == "S":
        return Shard(int(name[1:]))
    return Replicate() if name == "R" else Partial(name[1:] or "sum")


def choices(kind, sizes):
    shards = [f"S{d}" for d in range(len(sizes))] + ["R"]
    return shards + ["P"] if has_gradient(kind) else shards


def draw(rng, inputs, op, axes, layouts):
    """A sample of the combinations of placements, without duplicates."""
    per_input = []
    for spec in inputs:
        kind, _, sizes = spec.partition(" ")
        own = choices(kind, sizes_of(sizes))
        if kind == "write":
            own = [c for c in own if c != "P"]
        if op == "redistribute":
            own = own + ["Pavg", "Pmax", "Pmin"]
        several = [",".join(c) for c in itertools.product(own, repeat=axes)]
        # Reductions of different kinds do not commute.
        per_input.append([c for c in several if len({x for x in c.split(",") if x[0] == "P"}) < 2])
    if op == "redistribute":
        per_input.append([c for c in per_input[0] if "P" not in c])
        layouts *= 3
    every = 1
    for own in per_input:
        every *= len(own)
    if every <= layouts:
        return [" ".join(c) for c in itertools.product(*per_input)]
    found = set()
    while len(found) < layouts:
        found.add(" ".join(rng.choice(own) for own in per_input))
    return sorted(found)


def local_shard(full, placements, mesh):
    """The local shard of this rank, sharded axis by axis like `chunk`; partial values sum to the full tensor."""
    shard = full
    for axis, name in enumerate(placements.split(",")):
        n, c = mesh.size(axis), mesh.get_local_rank(axis)
        if name[0] == "S":
            dim = int(name[1:])
            step = -(-shard.size(dim) // n)
            begin = min(step * c, shard.size(dim))
            shard = shard.narrow(dim, begin, min(step, shard.size(dim) - begin))
        elif name in ("P", "Pavg"):
            shard = shard - (n - 1) if c == 0 else torch.ones_like(shard)
            if name == "Pavg":
                shard = shard * n
        elif name == "Pmax":
            shard = shard if c == n - 1 else shard - 2
        elif name == "Pmin":
            shard = shard if c == n - 1 else shard + 2
    return shard.clone(memory_format=torch.contiguous_format)


# ---- calls

def parse(text, inputs):
    if text == "none":
        return None
    if text in ("true", "false"):
        return text == "true"
    if text in ("float64", "float32"):
        return getattr(torch, text)
    if text[0] == "$":
        return inputs[int(text[1:])]
    if text[0] == "[":
        return [parse(item, inputs) for item in text[1:-1].split(",")]
    return float(text) if "." in text else int(text)


def call(op, inputs, args):
    if op == "redistribute":
        return [inputs[0]]
    name, _, overload = op.partition(".")
    function = getattr(getattr(torch.ops.aten, name), overload or "default")
    if name == "nll_loss":
        function = torch.ops.aten.nll_loss
    positional, named = [], {}
    for arg in args.split(" "):
        key, equals, value = arg.partition("=")
        if equals:
            named[key] = parse(value, inputs)
        else:
            positional.append(parse(arg, inputs))
    result = function(*positional, **named)
    return list(result) if isinstance(result, (list, tuple)) else [result]


def backward(results):
    total = 0
    for k, result in enumerate(results):
        if result.is_floating_point() and result.requires_grad:
            total = total + (result * numbers("small", list(result.shape), k, 9).to(result.dtype)).sum()
    if isinstance(total, torch.Tensor):
        total.backward()


def number(value, exact):
    return str(int(value)) if exact else f"{float(value):.6g}"


def listing(tensor, exact):
    return " ".join(number(v, exact) for v in tensor.detach().to(torch.float64).flatten().tolist())


def checksum(tensor, exact):
    flat = tensor.detach().to(torch.float64).flatten()
    return number((flat * (torch.arange(flat.numel()) % 13 + 1)).sum().item(), exact)


def close(a, b, exact):
    if a.shape != b.shape:
        return False
    a, b = a.detach().double(), b.detach().double()
    return torch.equal(a, b) if exact else torch.allclose(a, b, rtol=1e-4, atol=1e-5)


def shape_text(tensor):
    return ",".join(str(n) for n in tensor.shape)


# ---- a block

class Rank:
    def __init__(self, rank, seed, layouts):
        self.rank, self.seed, self.layouts = rank, seed, layouts
        self.meshes = {name: self.make_mesh(shape) for name, shape in MESHES}
        self.status = dist.new_group(backend="gloo")

    def make_mesh(self, shape):
        """Has its own groups, created again after a rank has left the others waiting in one of them."""
        from torch.distributed.device_mesh import DeviceMesh
        grid = torch.arange(torch.Size(shape).numel()).view(shape)
        mine = []
        for axis in range(len(shape)):
            for ranks in grid.movedim(axis, -1).reshape(-1, shape[axis]).tolist():
                group = dist.new_group(ranks, backend="gloo", timeout=datetime.timedelta(seconds=WAIT))
                if self.rank in ranks:
                    mine.append(group)
        if self.rank >= grid.numel():
            return None
        names = tuple("xy"[: len(shape)])
        if len(shape) == 1:
            return DeviceMesh.from_group(mine[0], "cpu", mesh_dim_names=names)
        return DeviceMesh.from_group(mine, "cpu", mesh=grid, mesh_dim_names=names)

    def one_layout(self, mesh, op, specs, args, exact, dense, wanted, want_grads, layout):
        from torch.distributed.tensor import DTensor, Replicate
        placements = layout.split(" ")
        leaves = []
        for k, (kind, full) in enumerate(zip(specs, dense)):
            shard = local_shard(full.detach(), placements[k], mesh)
            leaf = DTensor.from_local(shard, mesh, [placement(p) for p in placements[k].split(",")], run_check=False,
                                      shape=full.shape, stride=full.contiguous().stride())
            leaves.append(leaf.requires_grad_(has_gradient(kind)))
        results = call(op, leaves, args)
        if op == "redistribute":
            results = [results[0].redistribute(mesh, [placement(p) for p in placements[1].split(",")])]
        names = [text_of(r.placements) if isinstance(r, DTensor) else None for r in results]
        if None in names:
            return "other", None
        locals_ = [r.detach().to_local().contiguous() for r in results]
        # Only once: a masked partial value loses its mask when it is reduced.
        gathered = [r.redistribute(mesh, [Replicate()] * mesh.ndim).to_local() for r in results]
        fulls = [g.detach() for g in gathered]
        good = all(close(f, w, False) for f, w in zip(fulls, wanted))
        rounded = not all(close(f, w, exact) for f, w in zip(fulls, wanted))  # a third of a number, for example
        backward(gathered)
        for leaf, want in zip(leaves, want_grads):
            if want is not None:
                good = good and leaf.grad is not None and close(leaf.grad.full_tensor(), want, False)
        shards = []
        for name, shard in zip(names, locals_):
            unknown = rounded or "P" in name
            shards.append(f"{shape_text(shard)}:{'-' if unknown else checksum(shard, exact)}")
        return ("fine" if good else "differs"), (names, shards)

    def everywhere(self, name, shape, run):
        """The outcome on each rank of the mesh. A rank that raises leaves the others waiting, so groups are then
        created again; if all ranks only timed out, on a busy machine, the call is repeated."""
        for _ in range(3):
            outcome = ("absent", None)
            if self.meshes[name] is not None:
                try:
                    outcome = run(self.meshes[name])
                except Exception as error:  # noqa: BLE001: whatever it is, the reference has no result
                    text = str(error).split("\n")[0]
                    outcome = ("lost" if "gloo/transport" in text or "Application timeout" in text else "refused", text)
            every = [None] * 4
            dist.all_gather_object(every, outcome, group=self.status)
            every = [e for e in every if e[0] != "absent"]
            words = {e[0] for e in every}
            if words & {"lost", "refused"}:
                self.meshes[name] = self.make_mesh(shape)
            if "lost" not in words or "refused" in words:
                break
        return [("refused", e[1]) if e[0] == "lost" else e for e in every]

    def block(self, number_, op, inputs, args, exact):
        specs = [spec.partition(" ")[0] for spec in inputs]
        dense = []
        for k, spec in enumerate(inputs):
            kind, _, sizes = spec.partition(" ")
            dense.append(numbers(kind, sizes_of(sizes), k, self.seed).requires_grad_(has_gradient(kind)))
        results = call(op, [d.clone() if s == "write" else d for d, s in zip(dense, specs)], args)
        backward(results)
        want_grads = [d.grad for d in dense]
        word = "exact" if exact else "near"
        lines = [f"op {'' if op == 'redistribute' else 'aten::'}{op}"]
        lines += [f"in {spec}" for spec in inputs] + [f"args {args}"]
        for result in results:
            dtype = str(result.dtype).removeprefix("torch.")
            lines.append(f"value {word} {dtype} {shape_text(result)}: {listing(result, exact)}")
        for k, grad in enumerate(want_grads):
            if grad is not None:
                lines.append(f"grad {word} {k}: {listing(grad, exact)}")
        for mesh_name, shape in MESHES:
            rng = random.Random(f"{self.seed} {number_} {mesh_name}")
            for layout in draw(rng, inputs, op, len(shape), self.layouts):
                every = self.everywhere(mesh_name, shape, lambda mesh: self.one_layout(
                    mesh, op, specs, args, exact, dense, results, want_grads, layout))
                own = layout.rpartition(" ")[0] if op == "redistribute" else layout
                head = f"on {mesh_name}: {own} -> "
                outcomes = {e[0] for e in every}
                if "refused" in outcomes and self.rank == 0:
                    print(op, head, {e[1] for e in every if e[0] == "refused"}, file=sys.stderr)
                if outcomes == {"fine"}:
                    names = every[0][1][0]
                    ranks = [" ".join(e[1][1][k] for e in every) for k in range(len(names))]
                    lines.append(head + " ; ".join(names) + " | " + " ; ".join(ranks))
                elif "other" in outcomes:
                    lines.append(head + "other")
                elif "differs" in outcomes:
                    lines.append(head + "differs")
                else:
                    lines.append(head + "refused")
        return lines


def work(rank, port, out, seed, layouts, only):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=4, timeout=datetime.timedelta(seconds=60))
    me = Rank(rank, seed, layouts)
    lines = ["# Written by make_goldens.py with torch " + torch.__version__.split("+")[0] + ".", f"seed {seed}"]
    for k, (op, inputs, args, exact) in enumerate(OPS):
        if not only or op.split(".")[0] in only:
            lines += [""] + me.block(k, op, inputs, args, exact)
    if rank == 0:
        with open(out, "w") as file:
            file.write("\n".join(lines) + "\n")
    dist.barrier(me.status)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layouts", type=int, default=4)
    parser.add_argument("--only", nargs="*", default=[], help="operators without overload")
    given = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, args=(port, given.out, given.seed, given.layouts, given.only), nprocs=4)


if __name__ == "__main__":
    main()
