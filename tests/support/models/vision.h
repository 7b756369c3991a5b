// Convolutional networks.
#pragma once

#include <torch/torch.h>

namespace penstock::test {

namespace nn = torch::nn;

//! Convolutions with batch norm, dropout, an in-place operator and a residual connection.
struct ConvNetImpl : nn::Module {
  ConvNetImpl() {
    conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(2, 4, 3).padding(1)));
    norm1 = register_module("norm1", nn::BatchNorm2d(4));
    conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(4, 4, 3).padding(1).bias(false)));
    norm2 = register_module("norm2", nn::BatchNorm2d(4));
    drop = register_module("drop", nn::Dropout2d(0.2));
    fc = register_module("fc", nn::Linear(16, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(norm1(conv1(x)).relu_(), 2);
    x = x + drop(norm2(conv2(x)));
    return fc(torch::adaptive_avg_pool2d(x, {2, 2}).flatten(1));
  }
  nn::Conv2d conv1{nullptr}, conv2{nullptr};
  nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  nn::Dropout2d drop{nullptr};
  nn::Linear fc{nullptr};
};
TORCH_MODULE(ConvNet);

//! A U-Net of two levels: its last layer reads the output of the first.
struct UNetImpl : nn::Module {
  UNetImpl() {
    down1 = register_module("down1", nn::Conv2d(nn::Conv2dOptions(1, 4, 3).padding(1)));
    down2 = register_module("down2", nn::Conv2d(nn::Conv2dOptions(4, 8, 3).padding(1)));
    up = register_module("up", nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 4, 2).stride(2)));
    last = register_module("last", nn::Conv2d(nn::Conv2dOptions(8, 1, 3).padding(1)));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto a = torch::relu(down1(x));
    const auto b = torch::relu(down2(torch::max_pool2d(a, 2)));
    return last(torch::cat({up(b), a}, 1));
  }
  nn::Conv2d down1{nullptr}, down2{nullptr}, last{nullptr};
  nn::ConvTranspose2d up{nullptr};
};
TORCH_MODULE(UNet);

}  // namespace penstock::test
