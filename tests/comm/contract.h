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

//! Runs a case on the device of the world.
void run(const ContractCase& contract, comm::World& world);

}  // namespace penstock::test
