"""Schedules with one stage per rank in PyTorch's loop, for steps that the C++ runtime cannot run."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import schedules as _reference


def _forward_only(rows: dict[int, list[Any]]) -> dict[int, list[Any]]:
    """PyTorch's loop skips backward passes in `eval`, but would scale gradients again."""
    return {rank: [a for a in row if a.computation_type != _reference.REDUCE_GRAD] for rank, row in rows.items()}


class _TableLoop(_reference.PipelineScheduleSingle):
    """Runs the table of a schedule that PyTorch does not have."""

    _loop: _reference._PipelineScheduleRuntime | None = None
    _rows: dict[int, list[Any]]

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> None:
        if self._loop is None:
            assert self.pipeline_order is not None
            loop = _reference._PipelineScheduleRuntime(
                [self._stage], self._n_microbatches, self._loss_fn, scale_grads=self.scale_grads
            )
            rows = {rank: [a for a in row if a is None or a.is_compute_op] for rank, row in self.pipeline_order.items()}
            loop._prepare_schedule_with_comms(rows)
            self._loop = loop
            self._rows = loop.pipeline_order_with_comms
        self._loop.pipeline_order_with_comms = self._rows if self._has_backward else _forward_only(self._rows)
        self._loop._has_backward = self._has_backward
        self._loop._internal_losses = self._internal_losses
        for name in ("_maybe_compute_loss", "_maybe_get_loss"):  # the program may have replaced them
            setattr(self._loop, name, getattr(self, name))
        self._loop._step_microbatches(*args, **kwargs)
