"""Metadata of the values of a stage: checks against what the user gave, and what a step found out."""

from __future__ import annotations

from typing import Any

from penstock.errors import PeerFailed, ShapeError
from torch.distributed.pipelining import stage as _reference
from torch.distributed.pipelining._utils import (
    InferenceMode,
    PipeliningMetadataError,
    _derive_grad_metas,
    extract_tensor_metas,
    validate_and_normalize_to_tuple,
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


class StageMetadata:
    """Checks the inputs and outputs of a stage, and sets the attributes that `torch.distributed.pipelining` sets."""

    def __init__(self, stage: Any, microbatches: int) -> None:
        self._stage = stage
        self._microbatches = microbatches
        self._recorded: bool | None = None
        self._inputs: Any = None
        self._outputs: Any = None

    def begin_step(self, train: bool) -> None:
        stage = self._stage
        if not isinstance(stage, _reference.PipelineStage) or self._recorded is train:
            return
        self._recorded = None
        dynamic = InferenceMode.needs_dynamic(stage._user_meta, train)
        stage._inference_mode = InferenceMode.DYNAMIC if dynamic else InferenceMode.STATIC
        # If all stages describe their values, the ends of the pipeline are not checked: nothing is received there.
        self._inputs = stage._user_meta.inputs if dynamic or not stage.is_first else None
        self._outputs = stage._user_meta.outputs if dynamic or not stage.is_last else None

    def check(self, kind: str, value: Any) -> None:
        """Raises MetadataError if the inputs or outputs of a microbatch differ from the example of the user."""
        expected = self._inputs if kind == "input" else self._outputs
        if expected:
            try:
                tensors = validate_and_normalize_to_tuple(_main_output(value)) or ()
                validate_tensors_metadata(f"Stage {self._stage.stage_index} {kind}", expected, tensors)
            except PipeliningMetadataError as error:
                raise MetadataError(str(error)) from None

    def record(self, args: tuple[Any, ...], output: Any, train: bool) -> None:
        """Stores the metadata of the first microbatch in the stage."""
        stage = self._stage
        if self._recorded is train or not isinstance(stage, _reference.PipelineStage):
            return
        self._recorded = train
        if stage._inference_mode == InferenceMode.STATIC:
            inputs, outputs = stage._user_meta.inputs, stage._user_meta.outputs
        else:
            inputs, outputs = _metas(args), _metas(_main_output(output))
        if inputs is None or outputs is None:
            return
        meta = stage._stage_meta
        meta.inputs, meta.outputs = inputs, outputs
        if train:
            stage.chunks = self._microbatches
            inferred = stage.is_last and stage._inference_mode == InferenceMode.DYNAMIC
            meta.input_grads = _derive_grad_metas(inputs)
            meta.output_grads = None if inferred else _derive_grad_metas(outputs)
        stage._setup_forward_send_info()


def _main_output(value: Any) -> Any:
    return value.output if isinstance(value, StageOutput) else value


def _metas(value: Any) -> tuple[Any, ...] | None:
    """The metadata of tensors; None if there are other values."""
    try:
        return extract_tensor_metas(validate_and_normalize_to_tuple(value))
    except PipeliningMetadataError:
        return None
