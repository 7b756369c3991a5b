// Translates the exceptions of the library to the classes of penstock.errors. Every extension module calls
// `register_errors` once. The classes are defined in Python, so all modules raise the same ones.
#pragma once

#include <penstock/base/error.h>

#include <pybind11/pybind11.h>

#include <exception>
#include <optional>
#include <string>

namespace penstock::python {

namespace py = pybind11;

template <class Tag>
py::object id_or_none(const std::optional<StrongId<Tag>>& id) {
  return id ? py::object(py::int_(id->value)) : py::none();
}

//! The Python counterpart of a context; unknown fields are None.
inline py::object to_python(const ErrorContext& context) {
  const auto text_or_none = [](const std::string& text) {
    return text.empty() ? py::object(py::none()) : py::object(py::str(text));
  };
  using namespace py::literals;
  return py::module_::import("penstock.errors")
      .attr("ErrorContext")("rank"_a = id_or_none(context.rank), "stage"_a = id_or_none(context.stage),
                            "microbatch"_a = id_or_none(context.microbatch),
                            "action"_a = text_or_none(context.action),
                            "tensor"_a = text_or_none(context.tensor), "op"_a = text_or_none(context.op));
}

//! Sets the Python error to an instance of the class `name` of penstock.errors. `attributes` are set in
//! addition to message, context and hint.
inline void set_error(const Error& error, const char* name, const py::dict& attributes = {}) {
  const py::object type = py::module_::import("penstock.errors").attr(name);
  const py::object instance =
      type.attr("_from_library")(error.message(), to_python(error.context()), error.hint(), attributes);
  PyErr_SetObject(type.ptr(), instance.ptr());
}

//! A translator for the errors in penstock/base/error.h. A module whose functions throw other classes
//! registers a translator for them after this one: the last one registered is called first.
inline void translate_error(std::exception_ptr thrown) {
  using namespace py::literals;
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const PeerFailed& error) {
    set_error(error, "PeerFailed", py::dict("peer"_a = error.peer().value, "cause"_a = error.cause()));
  } catch (const TimeoutError& error) {
    set_error(error, "TimeoutError");
  } catch (const CommError& error) {
    set_error(error, "CommError");
  } catch (const StorageError& error) {
    set_error(error, "StorageError", py::dict("errno"_a = error.code()));
  } catch (const ShapeError& error) {
    set_error(error, "ShapeError");
  } catch (const ScheduleError& error) {
    set_error(error, "ScheduleError");
  } catch (const ParseError& error) {
    set_error(error, "ParseError");
  } catch (const UsageError& error) {
    set_error(error, "UsageError");
  } catch (const Error& error) {
    set_error(error, "Error");
  }
}

//! Registers the translator for the functions of this module only: other modules have their own copies of the
//! exception classes.
inline void register_errors() {
  py::register_local_exception_translator(&translate_error);
}

}  // namespace penstock::python
