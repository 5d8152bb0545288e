// A libcuda.so.1 with a version and nothing else: what the CUDA runtime finds of an old driver.
extern "C" int cuDriverGetVersion(int* version) {
  *version = 12080;
  return 0;
}
