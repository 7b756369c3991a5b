// A stranger's program on penstock::penstock: our headers, libtorch's headers, and both libraries at run
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
