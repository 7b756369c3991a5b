"""The part of a schedule that runs its steps on the C++ runtime."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from penstock import _plan
from penstock._plan import Timeline
from penstock.errors import ShapeError, UsageError
from torch.distributed.pipelining._utils import PipeliningMetadataError
from torch.distributed.pipelining.schedules import _PipelineContext, _PipelineSchedule

from ._engine import Engine, Table, usable_world
from ._wiring import skip_values
from .stage import _RunsOnRuntime


class MetadataError(ShapeError, PipeliningMetadataError):
    """A value with an unexpected shape, dtype or structure. Also an error of `torch.distributed.pipelining`."""


class _OnRuntime(_PipelineSchedule):
    """Runs the steps of a schedule on the C++ runtime."""

    _engine: Engine | None = None
    _running: Any = None
    _loss_kwargs: dict[str, Any] | None = None
    _context: _PipelineContext | None = None
    _skips: list[tuple[str, int, int]] | None = None
    _shared: list[dict[int, str]] | None = None

    def declare_skips(self, skips: list[tuple[str, int, int]]) -> None:
        """Declares values that skip stages: name, the stage that returns it, the stage that uses it.

        The first stage returns a `StageOutput` with the value; the other takes it as a keyword argument. Call it on every
        rank, before the first step. Traced models need no declaration.
        """
        self._skips = list(skips)
        self._engine = None

    def declare_shared_parameters(self, shared: list[dict[int, str]]) -> None:
        """Declares parameters that several stages hold, such as tied embeddings: the name in each stage, by stage index.

        All copies start from the values in the first stage of each entry, and a step sums their gradients. Call it on every
        rank, before the first step.
        """
        self._shared = [dict(entry) for entry in shared]
        self._engine = None

    def timeline(self, *, all_ranks: bool = False) -> Timeline:
        """Returns the times of this rank's actions in the last step, in seconds.

        With `all_ranks`, of every rank: collective over the process group of the stages, whose backend must send objects.
        `timeline().show()` draws it, and a notebook shows it without a call.
        """
        if self._engine is None:
            raise UsageError("there is no timeline before the first step")
        stage, table = self._local_stages()[0], self._engine.table
        rows: list[Any] = [[] for _ in range(stage.group_size)]
        if all_ranks:
            dist.all_gather_object(rows, self._engine.timeline(), group=stage.group)
        else:
            rows[stage.group_rank] = self._engine.timeline()
        return _plan.measured_timeline(type(self).__name__, rows, table.stage_to_rank, table.microbatches)

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scales the gradients of all stages so that their norm is at most `max_norm`. Returns the norm before that.

        Collective over the ranks of the pipeline. For parameters that are plain tensors.
        """
        if self._engine is None:
            raise UsageError("there are no gradients before the first step")
        return self._engine.clip_grad_norm(max_norm, norm_type)

    # The table and the stages, in a form that single and multi schedules share.

    def _local_stages(self) -> list[Any]:
        raise NotImplementedError

    def _table(self) -> Table:
        raise NotImplementedError

    def _custom_functions(self) -> dict[str, Any]:
        return {}

    def step(self, *args: Any, **kwargs: Any) -> Any:
        stages = self._local_stages()
        for stage in stages:
            if not isinstance(stage, _RunsOnRuntime):
                raise TypeError(
                    f"a {type(stage).__name__} cannot run here: make stages with PipelineStage or build_stage of "
                    "penstock.pipelining"
                )
        world = usable_world(stages)
        try:
            return super().step(*args, **kwargs)  # type: ignore[safe-super]
        except ShapeError as error:
            world.mark_failed()
            raise MetadataError(error.message, error.context, error.hint).with_traceback(error.__traceback__) from None
        except BaseException as error:
            # The other ranks must not wait for a step that this rank gave up. If they failed first, they know.
            world.fail(f"{type(error).__name__}: {error}")
            raise

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        args, kwargs = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        engine = self._usable_engine()
        self._context = _PipelineContext(self, args, kwargs, target_mbs, losses)
        self._loss_kwargs = loss_kwargs
        try:
            self._internal_losses = engine.run(args, kwargs, target_mbs, self._has_backward, return_outputs)
        finally:
            self._context = self._loss_kwargs = None
        self._update_losses(self._local_stages(), losses)

    def _split_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        args_split, kwargs_split = super()._split_inputs(args, kwargs)
        if len(args_split) != self._n_microbatches:
            raise UsageError(
                f"the batch has too few rows for {self._n_microbatches} microbatches: it can be split into at most "
                f"{len(args_split)}",
                hint="use a larger batch or fewer microbatches",
            )
        return args_split, kwargs_split

    def _usable_engine(self) -> Engine:
        stages = self._local_stages()
        world = usable_world(stages)
        if self._engine is None or self._engine.generation != world.generation:
            self._engine = Engine(stages, world, self._table(), self._settings(stages))
        return self._engine

    def _settings(self, stages: list[Any]) -> dict[str, Any]:
        skips, shared = self._skips, self._shared
        info = getattr(stages[0], "pipe_info", None)
        if skips is None:
            skips = skip_values(info.graph) if info is not None else []
        if shared is None:
            shared = stages[0]._shared_parameters
        return {
            "loss": self._call_loss if self._loss_fn is not None else None,
            "scale_grads": self.scale_grads,
            "skips": skips,
            "shared": [list(entry.items()) for entry in shared],
            "custom": self._custom_functions(),
            "defer_receives": getattr(self, "_defer_pp_recv", False),
        }

    def _call_loss(self, output: Any, target: Any) -> torch.Tensor:
        return self._compute_loss(output, target, self._loss_kwargs)  # type: ignore[no-any-return]

    # A function that replaces an action may call these; the runtime has done their work.

    def _maybe_compute_loss(
        self, stage: Any, output: Any, target_mbs: Any, mb_index: int, loss_kwargs: Any = None
    ) -> None:
        if self._running is None:
            super()._maybe_compute_loss(stage, output, target_mbs, mb_index, loss_kwargs)

    def _maybe_get_loss(self, stage: Any, mb_index: int) -> Any:
        return None if self._running is not None else super()._maybe_get_loss(stage, mb_index)
