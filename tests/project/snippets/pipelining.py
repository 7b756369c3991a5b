# docs/pipelining.md: one rank with its modules and a batch.
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss

from penstock.pipelining import PipelineStage, ScheduleGPipe, StageOutput

if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank, world_size, device = 0, 1, torch.device("cpu")
module = torch.nn.Linear(4, 4)
x, target, losses = torch.randn(8, 4), torch.randn(8, 4), []
schedule = ScheduleGPipe(PipelineStage(module, rank, world_size, device), 2)
