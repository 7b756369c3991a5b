// The names of kinds of values in messages.
#pragma once

#include <string>

namespace c10 {
struct IValue;
}

namespace penstock::value {

//! Returns the kind of a value: `tensor`, `int`, `None`, `dict`, …
std::string kind_name(const c10::IValue& value);

}  // namespace penstock::value
