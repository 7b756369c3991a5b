// Errors on their way from the library to Python.
#include "raise.h"

#include "../errors.h"

#include <penstock/base/error.h>
#include <penstock/checkpoint/error.h>
#include <penstock/runtime/error.h>

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

#include <string>

namespace penstock::python {
namespace {

// Adds where it happened to the exception that is set, and throws it.
[[noreturn]] void throw_set(const std::string& where) {
  py::error_already_set error;
  if (!where.empty() && py::hasattr(error.value(), "add_note")) error.value().attr("add_note")(where);
  throw error;
}

// If the exception, or the one nested in it, came from Python: throws it.
void throw_if_from_python(const std::exception_ptr& error, const std::string& where) {
  try {
    std::rethrow_exception(error);
  } catch (py::error_already_set& e) {
    e.restore();
    throw_set(where);
  } catch (py::builtin_exception& e) {
    e.set_error();
    throw_set(where);
  } catch (python_error& e) {
    e.restore();
    throw_set(where);
  } catch (const Error& e) {
    const auto* const nested = dynamic_cast<const std::nested_exception*>(&e);
    if (nested == nullptr || !nested->nested_ptr()) return;
    const std::string context = to_string(e.context());
    throw_if_from_python(nested->nested_ptr(), context.empty() ? where : "raised in " + context);
  } catch (...) {  // not from Python
  }
}

}  // namespace

void raise(const std::exception_ptr& error) {
  throw_if_from_python(error, "");
  try {
    std::rethrow_exception(error);
  } catch (const runtime::StageError& e) {
    set_error(e, "StageError");
  } catch (const checkpoint::CheckpointError& e) {
    set_error(e, "CheckpointError");
  } catch (const Error& e) {
    translate_error(error);
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
  throw py::error_already_set();
}

}  // namespace penstock::python
