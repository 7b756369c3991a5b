// A user's program that uses penstock::plan only.
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
