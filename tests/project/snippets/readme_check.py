# The same step without a pipeline: the losses of the microbatches, and the gradients of their mean.
assert world_size == 2
alone = [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]
for ours, theirs in zip(alone, modules):
    ours.load_state_dict(theirs.state_dict())
expected = [torch.nn.functional.mse_loss(alone[1](alone[0](rows)), rows_target) for rows, rows_target in zip(x.chunk(8), target.chunk(8))]
(sum(expected) / 8).backward()
for ours, theirs in zip(alone[rank].parameters(), module.parameters()):
    torch.testing.assert_close(theirs.grad, ours.grad)
if rank == 1:
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected).detach())
dist.destroy_process_group()
