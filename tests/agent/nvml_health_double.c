/* A double of NVML's library for the preflight: it says that it is one. NVML_DOUBLE names a file with a line for each
 * GPU: "uncorrected-ECC-errors throttle-reasons"; with "{node}" at its end, one for each node. What it doesn't have, pynvml reports as "function not found". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16
typedef struct { unsigned long long ecc, reasons; } device;
static device devices[MOST];
static unsigned device_count;
const char *nvml_double = "this is a double of NVML";

int nvmlInitWithFlags(unsigned flags) {
  const char *given = getenv("NVML_DOUBLE") ? getenv("NVML_DOUBLE") : "", *node = getenv("FT_NODE");
  char path[4096];
  size_t length = strlen(given), mark = strlen("{node}");
  int of_node = length >= mark && !strcmp(given + length - mark, "{node}");
  snprintf(path, sizeof path, "%.*s%s", (int)(of_node ? length - mark : length), given, of_node && node ? node : "");
  FILE *file = fopen(path, "r");
  (void)flags;
  if (!file) return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
  device_count = 0;
  while (device_count < MOST &&
         fscanf(file, "%llu %llu", &devices[device_count].ecc, &devices[device_count].reasons) == 2)
    device_count++;
  fclose(file);
  return 0;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : "error of the double"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "double-1.0"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = atoi(getenv("NVML_DOUBLE_CUDA") ? getenv("NVML_DOUBLE_CUDA") : "99000");
  return 0;
}
int nvmlDeviceGetPersistenceMode(device *of, int *mode) { (void)of; *mode = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = device_count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **found) { *found = &devices[index]; return 0; }
int nvmlDeviceGetTotalEccErrors(device *of, int type, int counter, unsigned long long *found) {
  (void)counter;
  *found = type == 1 ? of->ecc : 0; /* 1: uncorrected */
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(device *of, unsigned long long *found) {
  *found = of->reasons;
  return 0;
}
