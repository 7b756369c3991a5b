"""Metadata of the values of a stage: checks against what the user gave, and what a step found out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from penstock.errors import PeerFailed, ShapeError
from torch.distributed.pipelining import stage as _reference
from torch.distributed.pipelining._utils import (
    InferenceMode,
    PipeliningMetadataError,
    _derive_grad_metas,
    extract_tensor_meta,
    extract_tensor_metas,
    validate_and_normalize_to_tuple,
    validate_metadata,
    validate_tensors_metadata,
)

from ._wiring import StageOutput


class MetadataError(ShapeError, PipeliningMetadataError):
    """A value with an unexpected shape, dtype or structure. Also an error of `torch.distributed.pipelining`."""


class PeerMetadataError(PeerFailed, PipeliningMetadataError):
    """Another rank raised a MetadataError."""

    @classmethod
    def of(cls, error: PeerFailed) -> PeerMetadataError:
        made = cls(error.message, error.context, error.hint)
        made.peer, made.cause = error.peer, error.cause
        return made


def needs_inference(stage: Any, train: bool) -> bool:
    """Whether a stage of the program's own does not describe all its values."""
    return isinstance(stage, _reference.PipelineStage) and InferenceMode.needs_dynamic(stage._user_meta, train)


class StageMetadata:
    """Checks the values of a stage, and sets the attributes that `torch.distributed.pipelining` sets.

    Examples of the user are expected in every microbatch. If some stage has none, the first microbatch of a step with a
    backward pass, and of one without, gives the metadata of all stages. With `TORCH_DISTRIBUTED_DEBUG=DETAIL`, every
    value must have the known metadata.
    """

    def __init__(self, stage: Any, microbatches: int) -> None:
        self._stage = stage
        self._manual = isinstance(stage, _reference.PipelineStage)
        self._microbatches = microbatches
        self._train = self._infers = False
        self._is_known = self._is_complete = False
        self._debugs = False
        self._examples: dict[str, Any] = {}
        self._positional = 0

    def begin_step(self, train: bool, infers: bool) -> None:
        """`infers`: some stage of the pipeline does not describe its values."""
        stage = self._stage
        self._debugs = stage._runtime_validate
        if self._is_complete and (self._train, self._infers) == (train, infers):
            return
        self._train, self._infers = train, infers
        self._is_known = self._is_complete = False
        if not self._manual:
            return
        stage._inference_mode = InferenceMode.DYNAMIC if infers else InferenceMode.STATIC
        # If all stages describe their values, the ends of the pipeline are not checked: nothing is received there.
        self._examples = {
            "input": stage._user_meta.inputs if infers or not stage.is_first else None,
            "output": stage._user_meta.outputs if infers or not stage.is_last else None,
        }
        if not infers:
            self._take_examples()

    def check_inputs(self, args: tuple[Any, ...]) -> None:
        self._positional = len(args)
        if not self._manual and not self._is_known:
            self._set_up()
            self._is_known = True
        if self._manual and self._stage.is_first and self._infers:
            _refuse_none(args)
        self._check("input", "forward inputs", args)

    def check_outputs(self, args: tuple[Any, ...], output: Any) -> None:
        """Checks the output of a microbatch, records its metadata if it is the first one, and watches its gradients."""
        stage, output = self._stage, _main_output(output)
        if self._manual and not stage.is_last and self._infers:
            _refuse_none(output)
        self._check("output", "forward outputs", output)
        first = not self._is_known
        if first:
            self._record(args, output)
        if self._train and self._manual and (first or self._debugs):
            self._watch("input", args, first)
            if not stage.is_last:
                self._watch("output", output, first)

    def end_step(self) -> None:
        """Sets up what PyTorch prepares for sends and receives."""
        if not self._is_complete:
            self._is_complete = True
            if self._manual:
                self._set_up()

    def _check(self, kind: str, label: str, value: Any) -> None:
        """Raises MetadataError if a value differs from the example of the user, or from what is known."""
        stage, expected = self._stage, self._examples.get(kind)
        if expected:
            _compare(f"Stage {stage.stage_index} {kind}", expected, value)
        if self._debugs and self._is_known and not (kind == "output" and stage.is_last):
            known = getattr(stage._stage_meta, f"{kind}s")
            # Of a traced stage, PyTorch also counts the values that skip stages here.
            if known is not None and (self._manual or len(known) == len(value)):
                _compare(f"Stage {stage.stage_index} {label}", known, value)

    def _take_examples(self) -> None:
        meta, user = self._stage._stage_meta, self._stage._user_meta
        meta.inputs, meta.outputs = user.inputs, user.outputs
        if self._train:
            meta.input_grads = user.input_grads or _derive_grad_metas(user.inputs)
            meta.output_grads = user.output_grads or _derive_grad_metas(user.outputs)
        self._is_known = True

    def _record(self, args: tuple[Any, ...], output: Any) -> None:
        meta, user = self._stage._stage_meta, self._stage._user_meta
        meta.inputs, meta.outputs = _metas(args), _metas(output)
        if not self._train:  # PyTorch finds them without gradients, and runs the step in the mode of the caller
            meta.inputs = meta.inputs if self._stage.is_first else _without_grad(meta.inputs)
            meta.outputs = _without_grad(meta.outputs)
        else:
            meta.input_grads = self._expect_grads("input", meta.inputs, user.input_grads)
            meta.output_grads = None if self._stage.is_last else self._expect_grads("output", meta.outputs, user.output_grads)
        self._is_known = True

    def _expect_grads(self, kind: str, metas: tuple[Any, ...] | None, examples: tuple[Any, ...] | None) -> Any:
        """The metadata of gradients, until they arrive. Examples must be given for exactly those that will arrive."""
        if metas and examples:
            like = [meta if meta.requires_grad else None for meta in metas]
            pairs = zip_longest(like, examples[: len(like)])
            with _own_errors():
                validate_tensors_metadata(
                    f"Stage {self._stage.stage_index} {kind}_grad",
                    examples,
                    tuple(found and (example or found) for found, example in pairs),
                )
        return None if metas is None else _derive_grad_metas(metas)

    def _watch(self, kind: str, values: Any, first: bool) -> None:
        for index, value in enumerate(values if isinstance(values, (tuple, list)) else (values,)):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.register_hook(partial(self._see_gradient, kind, index, first))

    def _see_gradient(self, kind: str, index: int, first: bool, gradient: torch.Tensor) -> None:
        stage = self._stage
        metas = getattr(stage._stage_meta, f"{kind}_grads")
        if metas is None:
            return
        if first:
            found = extract_tensor_meta(gradient)
            examples = getattr(stage._user_meta, f"{kind}_grads")
            if examples:
                _compare_one(f"Stage {stage.stage_index} {kind}_grad[{index}]", examples[index], found)
            setattr(stage._stage_meta, f"{kind}_grads", (*metas[:index], found, *metas[index + 1 :]))
        elif not (kind == "input" and stage.is_first):
            way = "output (input_grads)" if kind == "input" else "input (output_grads)"
            _compare_one(f"Stage {stage.stage_index} backward {way}[{index}]", metas[index], gradient)

    def _set_up(self) -> None:
        """Calls what prepares sends and receives in PyTorch, without memory for the values."""
        stage, device = self._stage, self._stage.device
        stage.device = torch.device("meta")
        try:
            if self._manual:
                stage._setup_forward_recv_info(self._microbatches, self._train)
                stage._setup_forward_send_info()
            else:
                stage._prepare_forward_infra(self._microbatches, (None,) * self._positional, None, self._train)
            if self._train:
                (stage._setup_backward_recv_info if self._manual else stage._prepare_backward_infra)(self._microbatches)
                if not stage.is_first:
                    stage.grad_send_info = stage._create_grad_send_info(stage.args_recv_info[0])
        except PipeliningMetadataError:
            pass  # PyTorch has no description of these values, such as those that skip stages
        finally:
            stage.device = device


@contextlib.contextmanager
def _own_errors() -> Iterator[None]:
    try:
        yield
    except PipeliningMetadataError as error:
        raise MetadataError(str(error)) from None


def _refuse_none(value: Any) -> None:
    """Raises MetadataError for None among the values that go to a stage."""
    if value is None or (isinstance(value, (tuple, list)) and any(part is None for part in value)):
        with _own_errors():
            validate_and_normalize_to_tuple([None] if value is None else value)


def _compare(label: str, expected: tuple[Any, ...], value: Any) -> None:
    with _own_errors():
        validate_tensors_metadata(label, expected, validate_and_normalize_to_tuple(value) or ())


def _compare_one(label: str, expected: Any, found: Any) -> None:
    if expected is None:
        raise MetadataError(f"{label}: expected None, got metadata")
    with _own_errors():
        validate_metadata(label, expected, found, raise_on_mismatch=True)


def _without_grad(metas: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
    return None if metas is None else tuple(replace(meta, requires_grad=False) for meta in metas)


def _main_output(value: Any) -> Any:
    return value.output if isinstance(value, StageOutput) else value


def _metas(value: Any) -> tuple[Any, ...] | None:
    """The metadata of tensors; None if there are other values."""
    try:
        return extract_tensor_metas(validate_and_normalize_to_tuple(value))
    except PipeliningMetadataError:
        return None
