// A stranger's program on penstock::plan alone.
#include <penstock/base/error.h>
#include <penstock/version.h>

#include <iostream>

int main() {
  try {
    throw penstock::UsageError("works", {.rank = penstock::Rank(1)});
  } catch (const penstock::Error& error) {
    std::cout << "penstock " << penstock::version() << ": " << error.what() << "\n";
  }
}
