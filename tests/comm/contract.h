// The contract that every transport must fulfill. Each case is a function that all ranks of a world run.
#pragma once

#include <penstock/comm/world.h>

#include <vector>

namespace penstock::test {

struct ContractCase {
  const char* name;
  void (*run)(comm::World& world);
};

const std::vector<ContractCase>& contract_cases();

}  // namespace penstock::test
