// The set of CPython 3.11 for small integers: linear probes within the table, otherwise the perturbed
// sequence.
#include "schedule/python_set.h"

#include <utility>

namespace penstock::schedule {

// Follows the probe sequence of the value until `stop(content)` holds, and returns that index.
template <class Stop>
std::size_t PythonSet::probe(int value, Stop&& stop) const {
  constexpr std::size_t linear_probes = 9;
  const std::size_t mask = table_.size() - 1;
  auto perturb = static_cast<std::size_t>(value);
  std::size_t at = perturb & mask;
  while (true) {
    const std::size_t ahead = at + linear_probes <= mask ? linear_probes : 0;
    for (std::size_t i = at; i <= at + ahead; ++i) {
      if (stop(table_[i])) return i;
    }
    perturb >>= 5U;
    at = (at * 5 + 1 + perturb) & mask;
  }
}

std::size_t PythonSet::find(int value) const {
  const std::size_t at = probe(value, [&](int content) { return content == value || content == kEmpty; });
  return table_[at] == value ? at : kNone;
}

void PythonSet::add(int value) {
  if (contains(value)) return;
  table_[probe(value, [](int content) { return content == kEmpty; })] = value;
  ++filled_;
  ++used_;
  if (filled_ * 5 >= (table_.size() - 1) * 3) grow();
}

void PythonSet::remove(int value) {
  const std::size_t at = find(value);
  if (at == kNone) return;
  table_[at] = kRemoved;
  --used_;
}

void PythonSet::grow() {
  std::size_t size = 8;
  while (size <= used_ * 4) size *= 2;
  const std::vector<int> old = std::exchange(table_, std::vector<int>(size, kEmpty));
  for (const int value : old) {
    if (value >= 0) table_[probe(value, [](int content) { return content == kEmpty; })] = value;
  }
  filled_ = used_;
}

std::vector<int> PythonSet::values() const {
  std::vector<int> found;
  for (const int value : table_) {
    if (value >= 0) found.push_back(value);
  }
  return found;
}

}  // namespace penstock::schedule
