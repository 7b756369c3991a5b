// A user's program that uses penstock::penstock: headers of Penstock and libtorch, and both libraries at run
// time.
#include <penstock/torch_version.h>
#include <penstock/version.h>

#include <ATen/core/Tensor.h>

#include <iostream>

int main() {
  const at::Tensor nothing;
  std::cout << "penstock " << penstock::version() << " on libtorch " << penstock::torch_version() << ", "
            << (nothing.defined() ? "a tensor" : "no tensor") << "\n";
}
