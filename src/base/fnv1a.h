// FNV-1a, a hash that is the same on every machine.
#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

inline constexpr std::uint64_t kFnv1aBasis = 0xcbf29ce484222325, kFnv1aPrime = 0x100000001b3;

//! The hash of the bytes; with `hash`, continues the hash of the bytes before them.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = kFnv1aBasis) {
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * kFnv1aPrime;
  return hash;
}

}  // namespace penstock
