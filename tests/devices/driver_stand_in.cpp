// A stand-in for libcuda.so.1: names of devices, and peer access between all of them but 0 and 2.
#include <cstdio>

extern "C" {

int cuInit(unsigned) {
  return 0;
}

int cuDeviceGet(int* device, int index) {
  *device = 10 + index;
  return 0;
}

int cuDeviceGetName(char* text, int length, int device) {
  std::snprintf(text, static_cast<std::size_t>(length), "Stand-in %d", device - 10);
  return 0;
}

int cuDeviceCanAccessPeer(int* result, int from, int to) {
  *result = from + to == 22 && from != to ? 0 : 1;
  return 0;
}
}
