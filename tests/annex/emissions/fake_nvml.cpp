// A libnvidia-ml.so.1 with two GPUs, whose counters grow by 3 J and by 4 J with each reading.
namespace {
unsigned long long counters[2] = {1'000'000, 2'000'000};  // millijoules
}  // namespace

extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &counters[index];
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* energy) {
  auto* const counter = static_cast<unsigned long long*>(device);
  *counter += counter == counters ? 3000 : 4000;
  *energy = *counter;
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned) {
  const char text[] = "Fake GPU";
  for (unsigned i = 0; i < sizeof text; ++i) name[i] = text[i];
  return 0;
}
}
