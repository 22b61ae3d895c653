//go:build ignore

// A stand-in for the GPU driver's library, libnvidia-ml.so.1, whose GPUs are files that tests change while it is read. It has
// the functions that the executor calls, under the names and with the layouts of the driver's public interface.
//
// The folder is named by DURWARD_FAKE_GPU and read anew at every call:
//
//	gpus        one GPU a line: UUID NAME TOTAL_MIB RESERVED_MIB; "_" in a name stands for a space
//	alloc/NAME  one allocation a line: PID GPU_INDEX MIB. What a program held that has ended does not count any more;
//	            PID 0 is memory that nobody holds. Files whose names begin with "." are on their way
//	lag         milliseconds for which the memory of an ended program is still held
//	lost-INDEX  the GPU has fallen off the bus
//	gone        the driver is not loaded
//	hang        the driver does not come back
//	xid         one critical error a line: GPU_INDEX CODE; those that were there before somebody listened are old
//
// Package fakegpu writes these files.

#define _GNU_SOURCE
#include <dirent.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <pthread.h>

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	INSUFFICIENT_SIZE = 7,
	DRIVER_NOT_LOADED = 9,
	TIMEOUT = 10,
	GPU_IS_LOST = 15,
};

#define MAX_GPUS 16
#define MAX_ALLOCATIONS 512
#define MIB 1048576ULL
#define EVENT_XID 8ULL
#define NO_INSTANCE 0xFFFFFFFFu

typedef struct { int index; } device;

typedef struct {
	char uuid[80];
	char name[64];
	unsigned long long total, reserved;
} gpu;

typedef struct {
	unsigned int pid;
	int gpu;
	unsigned long long mib;
} allocation;

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int gpu, memory; } utilisation;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } process;
typedef struct {
	device *device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
} event;
typedef struct { int told; unsigned int devices; } event_set;

static device devices[MAX_GPUS];
static int initialised;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned long long now_ms(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (unsigned long long)t.tv_sec * 1000 + (unsigned long long)t.tv_nsec / 1000000;
}

static const char *path_of(char *buffer, const char *name) {
	const char *dir = getenv("DURWARD_FAKE_GPU");
	snprintf(buffer, PATH_MAX, "%s/%s", dir ? dir : "/nonexistent", name);
	return buffer;
}

static FILE *open_file(const char *name) {
	char path[PATH_MAX];
	return fopen(path_of(path, name), "re");
}

static int exists(const char *name) {
	char path[PATH_MAX];
	return access(path_of(path, name), F_OK) == 0;
}

// state is what every call begins with.
static int state(void) {
	while (exists("hang"))
		usleep(10000);
	if (exists("gone"))
		return DRIVER_NOT_LOADED;
	return initialised ? SUCCESS : UNINITIALIZED;
}

static int lost(int index) {
	char name[32];
	snprintf(name, sizeof name, "lost-%d", index);
	return exists(name);
}

static int read_gpus(gpu *out) {
	FILE *f = open_file("gpus");
	int n = 0;
	if (!f)
		return 0;
	while (n < MAX_GPUS && fscanf(f, "%79s %63s %llu %llu", out[n].uuid, out[n].name, &out[n].total, &out[n].reserved) == 4) {
		for (char *c = out[n].name; *c; c++)
			if (*c == '_')
				*c = ' ';
		n++;
	}
	fclose(f);
	return n;
}

// ended reports whether no such program runs any more; what is left of it until its parent has noticed holds nothing.
static int ended(unsigned int pid) {
	char path[64], text[512];
	snprintf(path, sizeof path, "/proc/%u/stat", pid);
	FILE *f = fopen(path, "re");
	if (!f)
		return 1;
	size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = 0;
	char *name = strrchr(text, ')');
	return !name || name[1] == 0 || name[2] == 'Z' || name[2] == 'X';
}

// lingers reports whether the memory of an ended program is still held: the driver takes its time.
static int lingers(unsigned int pid) {
	static struct { unsigned int pid; unsigned long long since; } seen[MAX_ALLOCATIONS];
	static int count;
	unsigned long long lag = 0, now = now_ms();
	FILE *f = open_file("lag");
	if (!f)
		return 0;
	if (fscanf(f, "%llu", &lag) != 1)
		lag = 0;
	fclose(f);
	for (int i = 0; i < count; i++)
		if (seen[i].pid == pid)
			return now - seen[i].since < lag;
	if (count < MAX_ALLOCATIONS) {
		seen[count].pid = pid;
		seen[count++].since = now;
	}
	return lag > 0;
}

static int read_allocations(allocation *out) {
	char path[PATH_MAX], name[NAME_MAX + 16];
	DIR *dir = opendir(path_of(path, "alloc"));
	int n = 0;
	if (!dir)
		return 0;
	for (struct dirent *entry; (entry = readdir(dir));) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof name, "alloc/%s", entry->d_name);
		FILE *f = open_file(name);
		if (!f)
			continue;
		while (n < MAX_ALLOCATIONS && fscanf(f, "%u %d %llu", &out[n].pid, &out[n].gpu, &out[n].mib) == 3)
			if (out[n].pid == 0 || !ended(out[n].pid) || lingers(out[n].pid))
				n++;
		fclose(f);
	}
	closedir(dir);
	return n;
}

// find is what every call on a GPU begins with.
static int find(device *d, gpu *out) {
	gpu all[MAX_GPUS];
	int s = state();
	if (s != SUCCESS)
		return s;
	int n = read_gpus(all);
	if (!d || d->index >= n)
		return INVALID_ARGUMENT;
	if (lost(d->index))
		return GPU_IS_LOST;
	*out = all[d->index];
	return SUCCESS;
}

static int measure(device *d, gpu *g, unsigned long long *used) {
	allocation all[MAX_ALLOCATIONS];
	int s = find(d, g);
	if (s != SUCCESS)
		return s;
	pthread_mutex_lock(&lock);
	int n = read_allocations(all);
	pthread_mutex_unlock(&lock);
	*used = 0;
	for (int i = 0; i < n; i++)
		if (all[i].gpu == d->index)
			*used += all[i].mib;
	return SUCCESS;
}

static int copy(const char *from, char *to, unsigned int length) {
	if (strlen(from) + 1 > length)
		return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return SUCCESS;
}

int nvmlInit_v2(void) {
	for (int i = 0; i < MAX_GPUS; i++)
		devices[i].index = i;
	initialised = 1;
	int s = state();
	initialised = s == SUCCESS;
	return s;
}

int nvmlInitWithFlags(unsigned int flags) {
	(void)flags;
	return nvmlInit_v2();
}

int nvmlShutdown(void) {
	int s = state();
	initialised = 0;
	return s;
}

const char *nvmlErrorString(int s) {
	switch (s) {
	case SUCCESS: return "Success";
	case UNINITIALIZED: return "Uninitialized";
	case DRIVER_NOT_LOADED: return "Driver Not Loaded";
	case GPU_IS_LOST: return "GPU is lost";
	case TIMEOUT: return "Timeout";
	default: return "Unknown Error";
	}
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
	int s = state();
	return s != SUCCESS ? s : copy("0.0-durward-stand-in", version, length);
}

int nvmlDeviceGetCount_v2(unsigned int *count) {
	gpu all[MAX_GPUS];
	int s = state();
	if (s == SUCCESS)
		*count = (unsigned int)read_gpus(all);
	return s;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device **d) {
	gpu g;
	if (index >= MAX_GPUS)
		return INVALID_ARGUMENT;
	int s = find(&devices[index], &g);
	if (s == SUCCESS)
		*d = &devices[index];
	return s;
}

int nvmlDeviceGetUUID(device *d, char *uuid, unsigned int length) {
	gpu g;
	int s = find(d, &g);
	return s != SUCCESS ? s : copy(g.uuid, uuid, length);
}

int nvmlDeviceGetName(device *d, char *name, unsigned int length) {
	gpu g;
	int s = find(d, &g);
	return s != SUCCESS ? s : copy(g.name, name, length);
}

static unsigned long long free_of(gpu *g, unsigned long long used) {
	return g->total > g->reserved + used ? g->total - g->reserved - used : 0;
}

int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *m) {
	gpu g;
	unsigned long long used;
	int s = measure(d, &g, &used);
	if (s != SUCCESS)
		return s;
	m->total = g.total * MIB;
	m->used = (used + g.reserved) * MIB;
	m->free = free_of(&g, used) * MIB;
	return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *m) {
	gpu g;
	unsigned long long used;
	int s = measure(d, &g, &used);
	if (s != SUCCESS)
		return s;
	m->total = g.total * MIB;
	m->reserved = g.reserved * MIB;
	m->used = used * MIB;
	m->free = free_of(&g, used) * MIB;
	return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(device *d, utilisation *u) {
	gpu g;
	unsigned long long used;
	int s = measure(d, &g, &used);
	if (s != SUCCESS)
		return s;
	u->gpu = used > 0 ? 37 : 0;
	u->memory = 0;
	return SUCCESS;
}

int nvmlDeviceGetTemperature(device *d, int sensor, unsigned int *celsius) {
	gpu g;
	(void)sensor;
	int s = find(d, &g);
	if (s == SUCCESS)
		*celsius = 41;
	return s;
}

int nvmlDeviceGetPowerUsage(device *d, unsigned int *milliwatts) {
	gpu g;
	int s = find(d, &g);
	if (s == SUCCESS)
		*milliwatts = 120500;
	return s;
}

int nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, unsigned long long *n) {
	gpu g;
	(void)type;
	(void)counter;
	int s = find(d, &g);
	if (s == SUCCESS)
		*n = 0;
	return s;
}

// running lists the programs; the same program may be there more than once, as with the driver.
static int running(device *d, unsigned int *count, process *out) {
	allocation all[MAX_ALLOCATIONS];
	gpu g;
	int s = find(d, &g);
	if (s != SUCCESS)
		return s;
	pthread_mutex_lock(&lock);
	int n = read_allocations(all);
	pthread_mutex_unlock(&lock);
	unsigned int found = 0, room = *count;
	for (int i = 0; i < n; i++) {
		if (all[i].gpu != d->index || all[i].pid == 0)
			continue;
		if (found < room && out) {
			out[found].pid = all[i].pid;
			out[found].used = all[i].mib * MIB;
			out[found].gpu_instance = out[found].compute_instance = NO_INSTANCE;
		}
		found++;
	}
	*count = found;
	return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

static int nobody(device *d, unsigned int *count) {
	gpu g;
	*count = 0;
	return find(d, &g);
}

int nvmlDeviceGetComputeRunningProcesses_v3(device *d, unsigned int *count, process *out) { return running(d, count, out); }

int nvmlDeviceGetGraphicsRunningProcesses_v3(device *d, unsigned int *count, process *out) {
	(void)out;
	return nobody(d, count);
}

int nvmlDeviceGetMPSComputeRunningProcesses_v3(device *d, unsigned int *count, process *out) {
	(void)out;
	return nobody(d, count);
}

// next_error returns how many errors there are, and the one with the number.
static int next_error(int number, int *index, unsigned long long *code) {
	FILE *f = open_file("xid");
	int n = 0, i;
	unsigned long long c;
	if (!f)
		return 0;
	while (fscanf(f, "%d %llu", &i, &c) == 2)
		if (n++ == number) {
			*index = i;
			*code = c;
		}
	fclose(f);
	return n;
}

int nvmlEventSetCreate(event_set **set) {
	int index;
	unsigned long long code;
	int s = state();
	if (s != SUCCESS)
		return s;
	*set = calloc(1, sizeof **set);
	(*set)->told = next_error(-1, &index, &code);
	return SUCCESS;
}

int nvmlDeviceRegisterEvents(device *d, unsigned long long types, event_set *set) {
	gpu g;
	int s = find(d, &g);
	if (s != SUCCESS)
		return s;
	if (types != EVENT_XID)
		return NOT_SUPPORTED;
	set->devices |= 1u << d->index;
	return SUCCESS;
}

int nvmlEventSetWait_v2(event_set *set, event *e, unsigned int timeout_ms) {
	unsigned long long until = now_ms() + timeout_ms;
	for (;;) {
		int index = -1;
		unsigned long long code = 0;
		int s = state();
		if (s != SUCCESS)
			return s;
		while (next_error(set->told, &index, &code) > set->told) {
			set->told++;
			if (index < 0 || index >= MAX_GPUS || !(set->devices & 1u << index))
				continue;
			e->device = &devices[index];
			e->type = EVENT_XID;
			e->data = code;
			e->gpu_instance = e->compute_instance = NO_INSTANCE;
			return SUCCESS;
		}
		if (now_ms() >= until)
			return TIMEOUT;
		usleep(5000);
	}
}

int nvmlEventSetFree(event_set *set) {
	free(set);
	return SUCCESS;
}
