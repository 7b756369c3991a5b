"""Errors: classes, attributes, and the translation from C++."""

from __future__ import annotations

import builtins
import pickle

import pytest

import penstock
from penstock import errors


def test_every_class_is_an_error_and_exported() -> None:
    classes = [getattr(errors, name) for name in errors.__all__ if name != "ErrorContext"]
    assert len(classes) == 13
    for cls in classes:
        assert issubclass(cls, penstock.Error)
        assert getattr(penstock, cls.__name__) is cls


@pytest.mark.parametrize(
    ("cls", "base"),
    [
        (errors.UsageError, ValueError),
        (errors.ParseError, ValueError),
        (errors.ScheduleError, ValueError),
        (errors.ShapeError, ValueError),
        (errors.StorageError, OSError),
        (errors.TimeoutError, builtins.TimeoutError),
        (errors.TimeoutError, errors.CommError),
        (errors.PeerFailed, errors.CommError),
        (errors.StageError, RuntimeError),
    ],
)
def test_classes_derive_from_those_of_python(cls: type[Exception], base: type[Exception]) -> None:
    assert issubclass(cls, base)


def test_text_contains_message_context_and_hint() -> None:
    context = errors.ErrorContext(rank=1, stage=0, action="2F0", tensor="args[0]")
    error = errors.ShapeError("expected 2 rows", context, "check the batch")
    assert str(error) == "expected 2 rows (rank 1, stage 0, action 2F0, tensor args[0])\nhint: check the batch"
    assert str(errors.UsageError("no ranks")) == "no ranks"


@pytest.mark.parametrize("name", [name for name in errors.__all__ if name != "ErrorContext"])
def test_errors_survive_pickling(name: str) -> None:
    error = getattr(errors, name)("what", errors.ErrorContext(rank=3), "fix it")
    if name == "StorageError":
        error.errno = 28
    if name == "PeerFailed":
        error.peer, error.cause = 2, "killed"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.context, vars(copy)) == (str(error), error.context, vars(error))
    assert getattr(copy, "errno", None) == getattr(error, "errno", None)
