// Seeds of initial values.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock::models {

//! Mixes a seed with the name of a parameter, so that the initial values of a parameter depend on nothing
//! else: neither on the order of initialization nor on the split into stages.
std::uint64_t name_seed(std::uint64_t seed, std::string_view name);

}  // namespace penstock::models
