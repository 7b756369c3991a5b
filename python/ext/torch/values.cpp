// Conversion between Python objects and values.
#include "values.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::python {
namespace {

constexpr const char* kDistributed = "__penstock_dtensor__";  // key of the description
constexpr const char* kLocal = "local";
constexpr const char* kNode = "__penstock_node__";  // key of the description of a dataclass or a named tuple
constexpr const char* kChildren = "children";

// Libtorch's own holder needs the headers of TorchScript.
struct HeldObject final : c10::ivalue::PyObjectHolder {
  explicit HeldObject(py::object object) : object_(std::move(object)) {}
  ~HeldObject() override {
    const py::gil_scoped_acquire gil;
    object_.release().dec_ref();
  }
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;

  PyObject* getPyObject() override { return object_.ptr(); }
  c10::InferredType tryToInferType() override { return c10::InferredType("a Python object"); }
  c10::IValue toIValue(const c10::TypePtr& /*type*/, std::optional<int32_t> /*count*/) override {
    throw std::runtime_error("a Python object is not a value of TorchScript");
  }
  std::string toStr() override {
    const py::gil_scoped_acquire gil;
    return py::str(object_);
  }
  std::vector<at::Tensor> extractTensors() override { return {}; }

 private:
  py::object object_;
};

enum class Nodes { Keep, Unpack };  // what happens to objects that are trees, such as dataclasses

c10::IValue convert(py::handle object, Nodes nodes);

py::object helper(const char* module, const char* name) {
  return py::module_::import((std::string("penstock.pipelining.") + module).c_str()).attr(name);
}

c10::IValue tensor_value(py::handle object) {
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  if (!tensor.key_set().has(c10::DispatchKey::Python)) return tensor;
  const py::object packed =
      helper("_distributed", "pack")(object);  // (local shard, description), or None for other subclasses
  if (packed.is_none()) return tensor;
  const auto parts = packed.cast<py::tuple>();
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert(kDistributed, parts[1].cast<std::string>());
  dict.insert(kLocal, THPVariable_Unpack(py::object(parts[0]).ptr()));
  return dict;
}

c10::IValue other_value(py::handle object, Nodes nodes) {
  if (nodes == Nodes::Keep) return hold(object);
  const py::object packed = helper("_structures", "pack")(object);  // (children, description), or None
  if (packed.is_none()) return hold(object);
  const auto parts = packed.cast<py::tuple>();
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  dict.insert(kNode, parts[1].cast<std::string>());
  dict.insert(kChildren, convert(parts[0], nodes));
  return dict;
}

c10::IValue dict_value(const py::dict& object, Nodes nodes) {
  bool strings = true, integers = true;
  for (const auto& item : object) {
    strings = strings && PyUnicode_CheckExact(item.first.ptr()) != 0;
    integers = integers && PyLong_CheckExact(item.first.ptr()) != 0;
  }
  if (!strings && !integers) return other_value(object, nodes);
  const c10::TypePtr key = strings ? c10::TypePtr(c10::StringType::get()) : c10::TypePtr(c10::IntType::get());
  c10::impl::GenericDict dict(key, c10::AnyType::get());
  for (const auto& item : object)
    dict.insert(
        strings ? c10::IValue(item.first.cast<std::string>()) : c10::IValue(item.first.cast<std::int64_t>()),
        convert(item.second, nodes));
  return dict;
}

c10::IValue convert(py::handle object, Nodes nodes) {
  PyObject* const raw = object.ptr();
  if (THPVariable_Check(raw)) return tensor_value(object);
  if (raw == Py_None) return {};
  if (PyBool_Check(raw)) return raw == Py_True;
  if (PyLong_CheckExact(raw)) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(raw, &overflow);
    return overflow == 0 ? c10::IValue(static_cast<std::int64_t>(number)) : hold(object);
  }
  if (PyFloat_CheckExact(raw)) return PyFloat_AS_DOUBLE(raw);
  if (PyUnicode_CheckExact(raw)) return object.cast<std::string>();
  if (PyTuple_CheckExact(raw)) {
    std::vector<c10::IValue> items;
    items.reserve(static_cast<std::size_t>(PyTuple_GET_SIZE(raw)));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(raw); ++i)
      items.push_back(convert(PyTuple_GET_ITEM(raw, i), nodes));
    return c10::ivalue::Tuple::create(std::move(items));
  }
  if (PyList_CheckExact(raw)) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(raw); ++i)
      list.push_back(convert(PyList_GET_ITEM(raw, i), nodes));
    return list;
  }
  if (PyDict_CheckExact(raw)) return dict_value(py::reinterpret_borrow<py::dict>(object), nodes);
  return other_value(object, nodes);
}

py::object dict_object(const c10::impl::GenericDict& dict) {
  if (dict.contains(kDistributed))
    return helper("_distributed", "unpack")(to_object(dict.at(kLocal)), dict.at(kDistributed).toStringRef());
  if (dict.contains(kNode))
    return helper("_structures", "unpack")(to_object(dict.at(kChildren)), dict.at(kNode).toStringRef());
  py::dict object;
  for (const auto& item : dict) object[to_object(item.key())] = to_object(item.value());
  return object;
}

}  // namespace

void SharedObject::drop(const py::object* object) {
  const py::gil_scoped_acquire gil;
  delete object;
}

c10::IValue hold(py::handle object) {
  return c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(
      c10::make_intrusive<HeldObject>(py::reinterpret_borrow<py::object>(object)));
}

c10::IValue to_value(py::handle object) {
  return convert(object, Nodes::Keep);
}

c10::IValue to_sendable(py::handle object) {
  return convert(object, Nodes::Unpack);
}

py::object to_object(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return py::none();
    return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
  }
  if (value.isPyObject()) return py::reinterpret_borrow<py::object>(value.toPyObject());
  if (value.isNone()) return py::none();
  if (value.isBool()) return py::bool_(value.toBool());
  if (value.isInt()) return py::int_(value.toInt());
  if (value.isDouble()) return py::float_(value.toDouble());
  if (value.isString()) return py::str(value.toStringRef());
  if (value.isTuple()) {
    const auto& items = value.toTupleRef().elements();
    py::tuple object(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) object[i] = to_object(items[i]);
    return object;
  }
  if (value.isList()) {
    py::list object;
    for (const c10::IValue& item : value.toListRef()) object.append(to_object(item));
    return object;
  }
  if (value.isGenericDict()) return dict_object(value.toGenericDict());
  throw py::type_error("a value of kind " + value.tagKind() + " has no counterpart in Python");
}

PyObject* find_held(const c10::IValue& value) {
  if (value.isPyObject()) return value.toPyObject();
  if (value.isTuple()) {
    for (const c10::IValue& item : value.toTupleRef().elements())
      if (PyObject* const found = find_held(item)) return found;
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      if (PyObject* const found = find_held(item)) return found;
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict())
      if (PyObject* const found = find_held(item.value())) return found;
  }
  return nullptr;
}

}  // namespace penstock::python
