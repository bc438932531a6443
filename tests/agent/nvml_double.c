/* A double of NVML's library: it says that it is one, and answers from the file in NVML_DOUBLE, one device a line:
 * "percent milliwatts uuid pid pid …". A percent below 0 is a device that doesn't know the call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16
typedef struct { unsigned gpu, memory; } utilisation;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
typedef struct { int percent; unsigned milliwatts; char uuid[80]; unsigned pids[MOST], count; } device;

static device devices[MOST];
static unsigned device_count;
const char *nvml_double = "this is a double of NVML";

int nvmlInit_v2(void) {
  FILE *file = fopen(getenv("NVML_DOUBLE") ? getenv("NVML_DOUBLE") : "", "r");
  char line[1024];
  if (!file) return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
  for (device_count = 0; device_count < MOST && fgets(line, sizeof line, file); device_count++) {
    device *made = &devices[device_count];
    int at = 0, more;
    memset(made, 0, sizeof *made);
    sscanf(line, "%d %u %79s%n", &made->percent, &made->milliwatts, made->uuid, &at);
    while (made->count < MOST && sscanf(line + at, "%u%n", &made->pids[made->count], &more) == 1) {
      made->count++;
      at += more;
    }
  }
  fclose(file);
  return 0;
}
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = device_count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **found) { *found = &devices[index]; return 0; }
int nvmlDeviceGetUtilizationRates(device *of, utilisation *found) {
  if (of->percent < 0) return 3; /* NVML_ERROR_NOT_SUPPORTED */
  found->gpu = of->percent;
  return 0;
}
int nvmlDeviceGetPowerUsage(device *of, unsigned *milliwatts) { *milliwatts = of->milliwatts; return 0; }
int nvmlDeviceGetUUID(device *of, char *uuid, unsigned length) { snprintf(uuid, length, "%s", of->uuid); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(device *of, unsigned *count, process *found) {
  for (unsigned n = 0; n < of->count; n++) found[n] = (process){of->pids[n], 0, 0, 0};
  *count = of->count;
  return 0;
}
