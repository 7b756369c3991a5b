# The pipeline of README.md: two ranks, each with a module; the first has the input, the last the target.
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size, device = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
torch.manual_seed(1)
modules = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
module = modules[rank]
x, target, losses = torch.randn(16, 4), torch.randn(16, 4), []
