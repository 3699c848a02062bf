/* A library with the functions of libnvidia-ml.so.1 that rdmatop calls, for its tests: it is no hardware. What it says is set
 * when it is built: GPUS, GPM (1: they have it), SM and TENSOR (percent), PID, DELAY, the seconds until a sample is there, and BUS and SLOT,
 * the PCI address of the first GPU; the next has the next bus. With PID_FILE, pid() is the number in that file, for a process that
 * begins later. A sample is a number, one more each. */
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#ifndef DELAY
#define DELAY 0
#endif
#ifndef BUS
#define BUS 0x0f
#define SLOT 0
#endif

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3 };

struct support {
	unsigned int version;
	unsigned int supported;
};

struct metric {
	unsigned int id;
	int rc;
	double value;
	struct {
		const char *short_name, *long_name, *unit;
	} info;
};

struct request {
	unsigned int version;
	unsigned int count;
	long *before, *after;
	struct metric metrics[];
};

struct process {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gpu_instance, compute_instance;
};

struct pci {
	char legacy_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char id[32];
};

#ifdef PID_FILE
static unsigned int pid(void)
{
	FILE *file = fopen(PID_FILE, "r");
	unsigned int pid = 0;

	if (file) {
		if (fscanf(file, "%u", &pid) != 1)
			pid = 0;
		fclose(file);
	}
	return pid;
}
#endif

static long samples[64];
static unsigned int allocated;
static long taken;

int nvmlInit_v2(void) { return SUCCESS; }

int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = GPUS;
	return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device)
{
	*device = (void *)(size_t)(index + 1);
	return index < GPUS ? SUCCESS : INVALID;
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
	*pci = (struct pci){ .bus = BUS + (unsigned int)(size_t)device - 1, .device = SLOT };
	return SUCCESS;
}

int nvmlGpmQueryDeviceSupport(void *device, struct support *support)
{
	(void)device;
	support->supported = GPM;
	return support->version == 1 ? SUCCESS : INVALID;
}

int nvmlGpmSampleAlloc(long **sample)
{
	*sample = &samples[allocated++ % 64];
	return SUCCESS;
}

int nvmlGpmSampleFree(long *sample)
{
	*sample = 0;
	return SUCCESS;
}

int nvmlGpmSampleGet(void *device, long *sample)
{
	(void)device;
	sleep(DELAY);
	*sample = ++taken;
	return GPM ? SUCCESS : NOT_SUPPORTED;
}

int nvmlGpmMetricsGet(struct request *request)
{
	unsigned int i;

	/* Samples that were freed, or the wrong way round. */
	if (request->version != 1 || !*request->before || *request->before >= *request->after)
		return INVALID;
	for (i = 0; i < request->count; i++) {
		struct metric *metric = &request->metrics[i];

		metric->rc = metric->id == 2 || metric->id == 5 ? SUCCESS : INVALID;
		metric->value = metric->id == 2 ? SM : TENSOR;
	}
	return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *room, struct process *processes)
{
	enum { INSUFFICIENT_SIZE = 7 };

	(void)device;
	if (!*room || !processes) {
		*room = 1;
		return INSUFFICIENT_SIZE;
	}
	*room = 1;
	processes[0] = (struct process){ .pid = PID };
	return SUCCESS;
}
