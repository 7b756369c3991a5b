"""The part of a schedule that runs its steps on the C++ runtime."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from penstock import _plan
from penstock._plan import Timeline
from penstock.errors import PeerFailed, ShapeError, UsageError
from torch.distributed.pipelining.schedules import _PipelineSchedule

from ._as_written import cannot_use_runtime, overrides_actions
from ._engine import Engine, Table, usable_world
from ._metadata import MetadataError, PeerMetadataError
from ._wiring import skip_values
from ._worlds import GroupWorld, is_joined


class _OnRuntime(_PipelineSchedule):
    """Runs the steps of a schedule on the C++ runtime."""

    _engine: Engine | None = None
    _built_generation: int | None = None
    _takes_part = False
    _engine_order: Any = None
    _as_written = False
    _initialized_flags: tuple[str, str]
    _set_up_by_runtime = False
    _grad_mode = True
    _step_losses: list[Any] = []
    _trains = False
    _loss_kwargs: dict[str, Any] | None = None
    _skips: list[tuple[str, int, int]] | None = None
    _shared: list[dict[int, str]] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy of the schedule needs: it connects the ranks again at its first step."""
        return {**self.__dict__, "_engine": None, "_built_generation": None}

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
            raise UsageError("there is no timeline before the first step, or of steps that run in PyTorch's loop")
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

    def _must_run_as_written(self) -> bool:
        return False

    def step(self, *args: Any, **kwargs: Any) -> Any:
        stages = self._local_stages()
        if cannot_use_runtime(stages):
            return super().step(*args, **kwargs)  # type: ignore[safe-super]
        if self._has_backward and not torch.is_grad_enabled() and not is_joined(stages[0].group):
            return super().step(*args, **kwargs)  # type: ignore[safe-super]  # raises, without waiting for other ranks
        world = usable_world(stages)
        self._takes_part = False
        try:
            return super().step(*args, **kwargs)  # type: ignore[safe-super]
        except ShapeError as error:
            if isinstance(error, MetadataError):
                self._give_up(world, error)
                raise
            world.mark_failed()
            raise MetadataError(error.message, error.context, error.hint).with_traceback(error.__traceback__) from None
        except PeerFailed as error:
            self._give_up(world, error)
            if "MetadataError" not in error.cause:
                raise
            raise PeerMetadataError.of(error).with_traceback(error.__traceback__) from None
        except BaseException as error:
            # The other ranks must not wait for a step that this rank gave up. If they failed first, they know.
            self._give_up(world, error)
            raise

    def _give_up(self, world: GroupWorld, error: BaseException) -> None:
        world.fail(f"{type(error).__name__}: {error}", outside=not self._takes_part)

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        stages = self._local_stages()
        if cannot_use_runtime(stages) or not self._run_microbatches(
            arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs
        ):
            self._prepare_as_written()
            super()._step_microbatches(  # type: ignore[safe-super]
                arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs
            )

    def _run_microbatches(
        self, arg_mbs: Any, kwarg_mbs: Any, targets: Any, losses: Any, return_outputs: bool, loss_kwargs: Any
    ) -> bool:
        """Runs a step on the runtime. Returns False if it must run as it is written."""
        stages = self._local_stages()
        world = usable_world(stages)
        args, kwargs = self._check_inputs(arg_mbs, kwarg_mbs, targets, losses)
        args, kwargs = [tuple(each) for each in args], [each or {} for each in kwargs]
        train = self._has_backward and all(stage.has_backward for stage in stages)
        self._loss_kwargs, self._grad_mode = loss_kwargs, torch.is_grad_enabled()
        self._step_losses, self._trains = [], train
        try:
            while True:
                engine = None
                try:
                    engine = self._engine_to_use()
                    if engine is None:
                        return False
                    self._check_target(stages, targets, train)
                    self._takes_part = True
                    engine.run(args, kwargs, targets, train, return_outputs)
                    break
                except PeerFailed as error:
                    started = engine is not None and engine.started
                    if started or not world.may_rejoin(error):
                        raise
            if self._step_losses:
                self._internal_losses = self._in_order(self._step_losses)
        finally:
            self._loss_kwargs = None
            self._step_losses = []
        self._after_runtime_step(train)
        self._update_losses(stages, losses)
        return True

    def _prepare_as_written(self) -> None:
        """Lets PyTorch's loop set up the stages again: the runtime leaves no buffers for it."""
        if self._skips or self._shared:
            raise UsageError(
                "declared skip values and shared parameters need the C++ runtime, but this schedule runs in PyTorch's loop",
                hint="do not override or replace what runs a part of a step, and register no custom functions",
            )
        if self._set_up_by_runtime:
            self._set_up_by_runtime = False
            for flag in self._initialized_flags:
                setattr(self, flag, False)

    def _after_runtime_step(self, train: bool) -> None:
        """Sets the attributes that tell programs what has been set up."""
        self._set_up_by_runtime = True
        for flag, value in zip(self._initialized_flags, (True, train), strict=True):
            setattr(self, flag, value)

    def _check_target(self, stages: list[Any], targets: list[Any] | None, train: bool) -> None:
        for stage in stages:
            if train and targets is None and stage.is_last:
                raise MetadataError(f"Stage {stage.stage_index}: loss_fn and target required for last stage")

    def _in_order(self, losses: list[Any]) -> list[Any]:
        """The losses of a step by microbatch."""
        assert self._engine is not None
        return [loss for _, loss in sorted(zip(self._engine.forward_order, losses, strict=True), key=lambda item: item[0])]

    def _split_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> tuple[list[Any], list[Any]]:
        args_split, kwargs_split = super()._split_inputs(args, kwargs)
        if len(args_split) != self._n_microbatches:
            raise UsageError(
                f"Expecting {self._n_microbatches} arg_mbs but got {len(args_split)}: the batch has too few rows for "
                f"{self._n_microbatches} microbatches and can be split into at most {len(args_split)}",
                hint="use a larger batch or fewer microbatches",
            )
        return args_split, kwargs_split

    def _order(self) -> Any:
        """The object that holds the table. A new object is a new table."""
        return None

    def _engine_to_use(self) -> Engine | None:
        """Returns None if a rank has stages whose methods must run as they are written. Collective."""
        stages = self._local_stages()
        world = usable_world(stages)
        if self._engine is None and self._as_written and world.size > 1:
            self._takes_part = True
            return None
        if world.size == 1 and overrides_actions(self, stages):
            return None
        if self._engine is not None and self._engine_order is not self._order():
            self._engine = None
        if self._engine is None and self._built_generation == world.generation:
            # Perhaps only this rank changed its schedule. The others learn of it when they start the step.
            world.fail("its schedule has changed", outside=True)
            world.ensure_usable()
        if self._engine is None or self._engine.generation != world.generation:
            self._engine = self._built_generation = None
            self._takes_part = True
            self._as_written = world.any_rank(self._must_run_as_written() or overrides_actions(self, stages))
            if self._as_written:
                return None
            table = self._table()
            self._engine = Engine(stages, world, table, self._settings(stages, table))
            self._engine_order, self._built_generation = self._order(), world.generation
        return self._engine

    def _settings(self, stages: list[Any], table: Table) -> dict[str, Any]:
        skips, shared = self._skips, self._shared
        info = getattr(stages[0], "pipe_info", None)
        if skips is None:
            skips = skip_values(info.graph) if info is not None else []
        if shared is None:
            shared = stages[0]._shared_parameters
        return {
            "loss": self._call_loss if self._loss_fn is not None else None,
            "scale_grads": self.scale_grads and table.reduces_gradients,
            "skips": skips,
            "shared": [list(entry.items()) for entry in shared],
            "defer_receives": getattr(self, "_defer_pp_recv", False),
        }

    def _call_loss(self, output: Any, target: Any) -> torch.Tensor:
        with torch.set_grad_enabled(self._grad_mode):
            loss = self._compute_loss(output, target, self._loss_kwargs)
        self._step_losses.append(loss.detach() if self._trains and isinstance(loss, torch.Tensor) else loss)
        if self._trains:
            return loss  # type: ignore[no-any-return]
        return torch.zeros(())  # the runtime needs a number, and the caller gets the losses as they are
