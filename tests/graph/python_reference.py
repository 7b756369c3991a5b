"""Computes the expected values of the import tests from the archives, on this machine.

Usage: python3 python_reference.py FOLDER OUT [NAME…]. For each NAME, or for all archives in FOLDER, OUT/NAME.safetensors from FOLDER/NAME.pt2
and the inputs in FOLDER/NAME.safetensors (see make_archives.py): for each run `r0.out.PATH` and `r0.grad.NAME`, after all runs `buffer.NAME`,
and `eval.PATH`, the outputs of run 0 in eval mode before all runs. Run k is seeded with k, and gradients do not accumulate over runs.

The models of make_archives.py run eagerly with the weights of the archive; others, of which only the archive is available, run as
Python's exported module.
"""
import copy
import json
import os
import struct
import sys

import torch
from torch.utils import _pytree as pytree

from make_archives import MODELS, save_tensors, tensor_outputs

DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64, "BF16": torch.bfloat16, "BOOL": torch.bool}


def load_tensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        blob = file.read()
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = torch.tensor(list(blob[begin:end]), dtype=torch.uint8).view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def register_outputs_of_transformers():
    """Stands in for the package, whose outputs are dicts: reading an archive needs only their types."""
    for name in ("CausalLMOutputWithCrossAttentions", "CausalLMOutputWithPast", "ImageClassifierOutput", "MaskedLMOutput", "Seq2SeqLMOutput"):
        kind = type(name, (dict,), {})
        pytree.register_pytree_node(kind, lambda x: (list(x.values()), list(x)), lambda values, keys, kind=kind: kind(zip(keys, values)),
                                    serialized_type_name=f"transformers.modeling_outputs.{name}")


def arguments(program, tensors, run):
    """The inputs of a run in the structure of the model; values that are not tensors are constants of the program."""
    specs = [spec for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    leaves = [tensors.get(f"{run}.in.{i}", getattr(spec.arg, "value", None)) for i, spec in enumerate(specs)]
    return pytree.tree_unflatten(leaves, program.call_spec.in_spec)


def results(model, runs, tensors):
    """Results of the runs, each with args and kwargs; `tensors` contains the gradients of their outputs."""
    found = {}
    for k, (args, kwargs) in enumerate(runs):
        model.zero_grad(set_to_none=True)
        torch.manual_seed(k)
        outputs = dict(tensor_outputs(model, args, kwargs))
        found.update({f"r{k}.out.{path}": output for path, output in outputs.items()})
        roots = [path for path, output in outputs.items() if output.requires_grad]
        torch.autograd.backward([outputs[path] for path in roots], [tensors[f"r{k}.seed.{path}"] for path in roots])
        found.update({f"r{k}.grad.{key}": value.grad for key, value in model.named_parameters() if value.grad is not None})
    found.update({f"buffer.{key}": value for key, value in model.named_buffers()})
    return found


def expected(name, program, tensors):
    runs = []
    while f"r{len(runs)}.in.0" in tensors:
        runs.append(arguments(program, tensors, f"r{len(runs)}"))
    if name not in MODELS:
        return results(program.module(), runs, tensors)
    model = MODELS[name]()
    model.load_state_dict(program.state_dict)
    evaluated = {f"eval.{path}": output for path, output in tensor_outputs(copy.deepcopy(model).eval(), *runs[0])}
    return evaluated | results(model, runs, tensors)


def main():
    torch.set_num_threads(1)
    register_outputs_of_transformers()
    folder, out = sys.argv[1:3]
    names = sys.argv[3:] or sorted(file.removesuffix(".safetensors") for file in os.listdir(folder) if file.endswith(".safetensors"))
    for name in names:
        program = torch.export.load(f"{folder}/{name}.pt2")
        save_tensors(f"{out}/{name}.safetensors", expected(name, program, load_tensors(f"{folder}/{name}.safetensors")))


if __name__ == "__main__":
    main()
