"""Writes the learning rates of PyTorch's schedulers, for learning_rate_test.cpp.

Usage: python3 make_learning_rates.py > learning_rates.txt. Each line has the name of a schedule, the step (from 1) and its rate. The peak
is 0.3, and a run has 40 steps, 6 of them warmup.
"""
import torch
from torch.optim import lr_scheduler as lr

PEAK, STEPS, WARMUP, FINAL = 0.3, 40, 6, 0.05


def rates(make, count):
    """The rates of epochs 0 to count - 1."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=PEAK)
    scheduler = make(optimizer)
    result = []
    for _ in range(count):
        result.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return result


def write(name, values):
    for step, value in enumerate(values, 1):
        print(name, step, repr(float(value)))


after = STEPS - WARMUP
warmup = rates(lambda o: lr.LinearLR(o, 1 / WARMUP, 1, WARMUP - 1), WARMUP)
# The last step of the warmup is epoch 0 of the schedule that follows.
write("linear", warmup + rates(lambda o: lr.LinearLR(o, 1, FINAL, after), after + 1)[1:])
write("cosine", warmup + rates(lambda o: lr.CosineAnnealingLR(o, after, PEAK * FINAL), after + 1)[1:])
write("polynomial", warmup + rates(lambda o: lr.PolynomialLR(o, after, 2.5), after + 1)[1:])
write("wsd", warmup + [PEAK] * (after - 9) + rates(lambda o: lr.LinearLR(o, 1, FINAL, 9), 10)[1:])
# The first step after the warmup starts the first period.
write("step", warmup + rates(lambda o: lr.StepLR(o, 8, 0.5), after))
write("one_cycle", rates(lambda o: lr.OneCycleLR(o, PEAK, STEPS, pct_start=WARMUP / STEPS), STEPS - 1) + [PEAK / 25 / 1e4])
