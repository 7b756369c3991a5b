// The functions of the CUDA driver that libtorch calls although there is no device.
#include <cuda.h>

extern "C" {

CUresult cuInit(unsigned /*flags*/) {
  return CUDA_SUCCESS;
}
CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice /*device*/, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

}  // extern "C"
