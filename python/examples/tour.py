# %% [markdown]
# # A tour of Penstock
# Each cell can be run in a notebook: VS Code, Jupyter (with jupytext) and PyCharm open this file as one.

# %% A schedule is a table of actions. A notebook shows it as a picture.
from penstock import plan, schedule, view

zb1p = schedule.generate("ZB1P", ranks=4, microbatches=8)
zb1p

# %% The simulator predicts the step: its time, its bubble and its memory.
for name in ("GPipe", "1F1B", "ZB1P"):
    step = plan.simulate(schedule.generate(name, ranks=4, microbatches=8))
    print(f"{name:6} step time {step.step_time:5.1f}, bubble {step.bubble:.1%}, peak memory {step.peak_memory}")

# %% A table of your own is validated before it runs. This one waits for a value that nobody sends.
broken = [["0F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
print(schedule.validate(broken).findings[0])

# %% The same schedule runs a model. A notebook has one process, so all stages are on one rank here.
import torch
import torch.distributed as dist

from penstock.pipelining import PipelineStage, ScheduleInterleaved1F1B

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
modules = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(4)]
stages = [PipelineStage(module, index, 4, torch.device("cpu")) for index, module in enumerate(modules)]
pipeline = ScheduleInterleaved1F1B(stages, 8, loss_fn=torch.nn.functional.mse_loss)
optimizer = torch.optim.Adam([p for module in modules for p in module.parameters()], lr=0.01)

# %% Train it.
x = torch.randn(256, 64)
history = []
for _ in range(30):
    losses: list[torch.Tensor] = []
    optimizer.zero_grad()
    pipeline.step(x, target=x.tanh(), losses=losses)
    optimizer.step()
    history.append(torch.stack(losses).mean().item())
print(f"loss {history[0]:.3f} -> {history[-1]:.3f}")

# %% What the last step did, in seconds.
timeline = pipeline.timeline()
print(view.grid(timeline, width=100))
timeline

# %% Leave the process group.
dist.destroy_process_group()
