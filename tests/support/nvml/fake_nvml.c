/* A stand-in for libnvidia-ml.so.1: what NVML would say about the machine that a *world folder* describes.
 *
 * The folder is named by FAKE_NVML_WORLD and read again at every call, so that tests move cards while somebody measures
 * them. tests/support/gpu_world.py writes it and explains its files. Only the binary interface is NVIDIA's: symbols,
 * structures, codes. nvmlDeviceGetAddressingMode is left out on purpose: older drivers lack symbols too.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_DRIVER = 9, TIMED_OUT = 10, LOST = 15 };
enum { MAX_DEVICES = 64, MAX_PROCS = 512, MAX_LINES = 256, MAX_HANDLES = 256, ANY = -1, NONE = -2 };
typedef unsigned long long u64;
typedef unsigned int u32;

typedef struct { u64 total, free, used; } Memory;
typedef struct { u32 version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { u32 pid; u64 used; u32 gi, ci; } Process;
typedef struct { u32 gpu, memory; } Utilization;
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { void *device; u64 type, data; u32 gi, ci; } Event;
typedef struct { u32 counts[8]; u64 memory_mb; } Attributes;

typedef struct { /* a card (sub < 0) or MIG instance `sub` of card `index`; numbers below zero = not supported */
    int index, sub;
    char uuid[96], name[96], serial[32], bus[32];
    u64 total, reserved, used;
    long long minor, major_cc, minor_cc, compute_mode, persistence, mig, max_mig, unified, numa, affinity, numa_memory, power, cap, energy, temp, util, throttle, ecc;
    int remap[4], hide;
    u32 gi, ci;
} Device;
typedef struct { int device; u32 pid; u64 said, held; char kinds[8]; } Proc;
typedef struct { char function[64]; int index, sub; long long value, times; } Rule; /* err and delay lines */
typedef struct { int from, number, to, state; } Link;                               /* `to` < 0: a switch */
typedef struct { int a, b, level; } Topo;
typedef struct { long long serial; int device; u64 type, data; u32 gi; } Happening;
typedef struct { char uuid[96]; int sub, losses; long long lost_at; } Handle; /* outlives the device: an opaque pointer that always means the same one */
typedef struct { long long seen, epoch; int count; struct { Handle *handle; int losses; u64 mask; } watched[MAX_DEVICES]; } EventSet;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char world[4096], driver[80];
static int readable, users;
static long long epoch, epoch_at_init;
static Device devices[MAX_DEVICES];
static Proc fixed[MAX_PROCS], procs[MAX_PROCS];
static Rule errors[MAX_LINES], delays[MAX_LINES];
static Link links[MAX_LINES];
static Topo topos[MAX_LINES];
static Happening happenings[MAX_LINES];
static Handle handles[MAX_HANDLES];
static int n_devices, n_fixed, n_procs, n_errors, n_delays, n_links, n_topos, n_happenings, n_handles;

static const char *value_of(char **words, int n, const char *key, const char *otherwise) {
    size_t length = strlen(key);
    for (int i = 0; i < n; i++)
        if (!strncmp(words[i], key, length) && words[i][length] == '=') return words[i] + length + 1;
    return otherwise;
}
static long long number_of(char **words, int n, const char *key, long long otherwise) {
    const char *text = value_of(words, n, key, NULL);
    return text ? strtoll(text, NULL, 0) : otherwise;
}
static int index_of(const char *word) { return !strcmp(word, "*") ? ANY : atoi(word); }
static void set_text(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from); }

static Device *find(int index, int sub) {
    for (int i = 0; i < n_devices; i++)
        if (devices[i].index == index && devices[i].sub == sub) return &devices[i];
    return NULL;
}
static Device *find_uuid(const char *uuid) {
    for (int i = 0; i < n_devices; i++)
        if (!strcmp(devices[i].uuid, uuid)) return &devices[i];
    return NULL;
}

static void read_device(char **w, int n, int mig) {
    Device *d = &devices[n_devices++];
    memset(d, 0, sizeof *d);
    d->index = atoi(w[1]);
    d->sub = mig ? atoi(w[2]) : -1;
    char text[96];
    snprintf(text, sizeof text, mig ? "MIG-fake-%d-%d" : "GPU-fake-%d", d->index, d->sub);
    set_text(d->uuid, sizeof d->uuid, value_of(w, n, "uuid", text));
    set_text(d->name, sizeof d->name, value_of(w, n, "name", "NVIDIA_Fake"));
    for (char *c = d->name; *c; c++) *c = *c == '_' ? ' ' : *c;
    set_text(d->serial, sizeof d->serial, value_of(w, n, "serial", ""));
    snprintf(text, sizeof text, "0000:%02X:00.0", 16 + d->index);
    set_text(d->bus, sizeof d->bus, value_of(w, n, "bus", text));
    d->total = number_of(w, n, "total", 24LL << 30);
    d->reserved = number_of(w, n, "reserved", 0);
    d->used = number_of(w, n, "used", 0);
    d->minor = number_of(w, n, "minor", d->index);
    const char *cc = value_of(w, n, "cc", "9.0");
    sscanf(cc, "%lld.%lld", &d->major_cc, &d->minor_cc);
    d->compute_mode = number_of(w, n, "compute_mode", 0);
    d->persistence = number_of(w, n, "persistence", 1);
    d->mig = number_of(w, n, "mig", -1);
    d->max_mig = number_of(w, n, "max_mig", 7);
    d->unified = number_of(w, n, "unified", 0);
    d->numa = number_of(w, n, "numa", -1);
    d->affinity = number_of(w, n, "affinity", d->numa < 0 || d->numa > 62 ? -1 : 1LL << d->numa);
    d->numa_memory = number_of(w, n, "numa_memory", -1);
    d->power = number_of(w, n, "power", -1);
    d->cap = number_of(w, n, "cap", -1);
    d->energy = number_of(w, n, "energy", -1);
    d->temp = number_of(w, n, "temp", -1);
    d->util = number_of(w, n, "util", -1);
    d->throttle = number_of(w, n, "throttle", -1);
    d->ecc = number_of(w, n, "ecc", -1);
    d->remap[0] = -1;
    sscanf(value_of(w, n, "remap", ""), "%d,%d,%d,%d", &d->remap[0], &d->remap[1], &d->remap[2], &d->remap[3]);
    d->hide = number_of(w, n, "hide", 0);
    d->gi = mig ? number_of(w, n, "gi", d->sub + 1) : 0xFFFFFFFFu;
    d->ci = mig ? number_of(w, n, "ci", 0) : 0xFFFFFFFFu;
}

static void read_rule(Rule *rule, char **w, int n) {
    set_text(rule->function, sizeof rule->function, w[1]);
    rule->index = index_of(w[2]);
    rule->sub = strchr(w[2], '.') ? atoi(strchr(w[2], '.') + 1) : ANY;
    rule->value = strtoll(w[3], NULL, 0);
    rule->times = number_of(w, n, "times", -1);
}

static void read_line(char *line) {
    char *w[48], *rest = NULL;
    int n = 0;
    for (char *word = strtok_r(line, " \t\n", &rest); word && n < 48; word = strtok_r(NULL, " \t\n", &rest)) w[n++] = word;
    if (n == 0 || *w[0] == '#') return;
    if (!strcmp(w[0], "gpu") && n >= 2 && n_devices < MAX_DEVICES) read_device(w, n, 0);
    if (!strcmp(w[0], "mig") && n >= 3 && n_devices < MAX_DEVICES) read_device(w, n, 1);
    if (!strcmp(w[0], "err") && n >= 4 && n_errors < MAX_LINES) read_rule(&errors[n_errors++], w, n);
    if (!strcmp(w[0], "delay") && n >= 4 && n_delays < MAX_LINES) read_rule(&delays[n_delays++], w, n);
    if (!strcmp(w[0], "link") && n >= 4 && n_links < MAX_LINES)
        links[n_links++] = (Link){atoi(w[1]), atoi(w[2]), strcmp(w[3], "switch") ? atoi(w[3]) : -1, number_of(w, n, "state", 1)};
    if (!strcmp(w[0], "topo") && n >= 4 && n_topos < MAX_LINES) topos[n_topos++] = (Topo){atoi(w[1]), atoi(w[2]), atoi(w[3])};
    if (!strcmp(w[0], "event") && n >= 3 && n_happenings < MAX_LINES)
        happenings[n_happenings++] = (Happening){atoll(w[1]), atoi(w[2]), number_of(w, n, "type", 8), number_of(w, n, "data", 0), number_of(w, n, "gi", 0xFFFFFFFF)};
    if (!strcmp(w[0], "driver")) {
        set_text(driver, sizeof driver, value_of(w, n, "version", "580.95.05"));
        epoch = number_of(w, n, "epoch", 0);
    }
    if (!strcmp(w[0], "proc") && n >= 3 && n_fixed < MAX_PROCS) {
        char *dot = strchr(w[1], '.');
        Device *d = find(atoi(w[1]), dot ? atoi(dot + 1) : -1);
        const char *used = value_of(w, n, "used", "0");
        u64 said = !strcmp(used, "na") ? ~0ULL : strtoull(used, NULL, 0);
        if (!d) return;
        Proc *p = &fixed[n_fixed++];
        *p = (Proc){(int)(d - devices), number_of(w, n, "pid", 0), said, number_of(w, n, "held", said == ~0ULL ? 0 : said), "C"};
        set_text(p->kinds, sizeof p->kinds, value_of(w, n, "kind", "C"));
    }
}

static void refresh(void) { /* the lock is held */
    static char text[1 << 16], fresh[1 << 16];
    const char *folder = getenv("FAKE_NVML_WORLD");
    char path[4200], *rest = NULL;
    if (!folder || strcmp(folder, world)) {
        set_text(world, sizeof world, folder ? folder : "");
        strcpy(text, "?"); /* another machine */
        users = 0;
    }
    snprintf(path, sizeof path, "%s/devices", world);
    FILE *file = *world ? fopen(path, "re") : NULL;
    readable = file != NULL;
    if (!file) return;
    fresh[fread(fresh, 1, sizeof fresh - 1, file)] = 0;
    fclose(file);
    if (!strcmp(fresh, text)) return; /* compared by content: inode, size and time can all be those of two writes ago */
    strcpy(text, fresh);
    n_devices = n_fixed = n_errors = n_delays = n_links = n_topos = n_happenings = 0;
    epoch = 0;
    set_text(driver, sizeof driver, "580.95.05");
    for (char *line = strtok_r(fresh, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) read_line(line);
}

/* --- what is held: /proc says who is alive, the folder says what they hold --- */

static int alive(const char *pid) {
    char path[300], text[512], *end;
    snprintf(path, sizeof path, "/proc/%s/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    end = strrchr(text, ')');
    return end && end[1] && !strchr("ZXx", end[2]);
}

static u64 read_holdings(const char *name, Device *lingering) { /* fills procs, or sums what lingers on a device */
    char path[4400], line[512], uuid[96], what[64], third[64];
    u64 sum = 0;
    struct timespec now;
    struct dirent *entry;
    snprintf(path, sizeof path, "%s/%s", world, name);
    DIR *folder = opendir(path);
    clock_gettime(CLOCK_MONOTONIC, &now);
    while (folder && (entry = readdir(folder))) {
        if (*entry->d_name == '.' || (!lingering && !alive(entry->d_name))) continue;
        snprintf(path, sizeof path, "%s/%s/%s", world, name, entry->d_name);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof line, file)) {
            set_text(third, sizeof third, "C");
            if (sscanf(line, "%95s %63s %63s", uuid, what, third) < 2) continue;
            Device *d = find_uuid(uuid);
            if (!d) continue;
            if (lingering) {
                if ((d == lingering || (lingering->sub < 0 && d->index == lingering->index)) && atof(third) > now.tv_sec + now.tv_nsec / 1e9)
                    sum += strtoull(what, NULL, 0);
            } else if (n_procs < MAX_PROCS) {
                u64 said = !strcmp(what, "na") ? ~0ULL : strtoull(what, NULL, 0);
                procs[n_procs] = (Proc){(int)(d - devices), atoi(entry->d_name), said, said == ~0ULL ? 0 : said, "C"};
                set_text(procs[n_procs++].kinds, sizeof procs[0].kinds, third);
            }
        }
        if (file) fclose(file);
    }
    if (folder) closedir(folder);
    return sum;
}

static void read_procs(void) {
    memcpy(procs, fixed, sizeof fixed);
    n_procs = n_fixed;
    read_holdings("procs", NULL);
}

static u64 used_of(Device *d) {
    u64 sum = d->used + read_holdings("linger", d);
    read_procs();
    for (int i = 0; i < n_procs; i++) {
        Device *on = &devices[procs[i].device];
        if (on == d || (d->sub < 0 && on->index == d->index)) sum += procs[i].held;
    }
    for (int i = 0; d->sub < 0 && i < n_devices; i++)
        if (devices[i].sub >= 0 && devices[i].index == d->index) sum += devices[i].used;
    return sum;
}

/* --- the gate of every call: initialised? delayed? failing? --- */

static Rule *match(Rule *rules, int n, const char *function, int index, int sub) {
    for (int i = 0; i < n; i++) {
        Rule *r = &rules[i];
        if (strcmp(r->function, "*") && strcmp(r->function, function)) continue;
        if ((r->index != ANY && r->index != index) || (r->sub != ANY && r->sub != sub) || r->times == 0) continue;
        return r;
    }
    return NULL;
}

static int gate_at(const char *function, int index, int sub) { /* the lock is held, and let go while a call is delayed */
    struct timespec slice = {0, 2000000};
    long long waited_us = 0;
    refresh();
    for (Rule *r; (r = match(delays, n_delays, function, index, sub)) && waited_us < r->value * 1000; waited_us += 2000) {
        pthread_mutex_unlock(&lock); /* a line that is taken away ends the delay */
        nanosleep(&slice, NULL);
        pthread_mutex_lock(&lock);
        refresh();
    }
    if (!readable) return NO_DRIVER;
    if (strcmp(function, "InitWithFlags") && (!users || epoch != epoch_at_init)) return UNINITIALIZED;
    Rule *r = match(errors, n_errors, function, index, sub);
    if (r && r->times > 0) r->times--;
    return r ? (int)r->value : OK;
}

static long long last_serial(void) {
    long long most = 0;
    for (int i = 0; i < n_happenings; i++) most = happenings[i].serial > most ? happenings[i].serial : most;
    return most;
}
static void note_loss(Handle *handle) {
    handle->losses++;
    handle->lost_at = last_serial();
}

static int gate(const char *function, Handle *handle, Device **out) {
    if (!handle) return INVALID;
    refresh();
    Device *d = find_uuid(handle->uuid);
    int code = gate_at(function, d ? d->index : NONE, d ? d->sub : -1);
    *out = find_uuid(handle->uuid); /* the world may have moved meanwhile */
    if (code == LOST) note_loss(handle);
    return code ? code : *out ? OK : handle->sub >= 0 ? INVALID : LOST;
}

static Handle *handle_of(Device *d) {
    for (int i = 0; i < n_handles; i++)
        if (!strcmp(handles[i].uuid, d->uuid)) return &handles[i];
    if (n_handles == MAX_HANDLES) abort();
    set_text(handles[n_handles].uuid, sizeof handles[0].uuid, d->uuid);
    handles[n_handles].sub = d->sub;
    return &handles[n_handles++];
}

#define WITH_LOCK(...) do { pthread_mutex_lock(&lock); int code; __VA_ARGS__; pthread_mutex_unlock(&lock); return code; } while (0)
#define SYSTEM_CALL(name, params, ...) API int nvml##name params { WITH_LOCK(if ((code = gate_at(#name, NONE, -1)) == OK) { __VA_ARGS__; }); }
#define DEVICE_CALL(name, params, ...) API int nvml##name params { Device *d; WITH_LOCK(if ((code = gate(#name, h, &d)) == OK) { __VA_ARGS__; }); }
#define GIVE(to, value) if ((long long)(value) < 0) code = NOT_SUPPORTED; else *(to) = (value)

API int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    WITH_LOCK(if ((code = gate_at("InitWithFlags", NONE, -1)) == OK) {
        users = epoch == epoch_at_init ? users + 1 : 1;
        epoch_at_init = epoch;
    });
}
SYSTEM_CALL(Shutdown, (void), users--)
API const char *nvmlErrorString(int code) { static char text[40]; snprintf(text, sizeof text, "fake error %d", code); return text; }
SYSTEM_CALL(SystemGetDriverVersion, (char *to, u32 size), set_text(to, size, driver))
SYSTEM_CALL(SystemGetNVMLVersion, (char *to, u32 size), snprintf(to, size, "13.%s", driver))
SYSTEM_CALL(SystemGetCudaDriverVersion_v2, (int *to), *to = 13000)
SYSTEM_CALL(DeviceGetCount_v2, (u32 *to), *to = 0; for (int i = 0; i < n_devices; i++) *to += devices[i].sub < 0)

API int nvmlDeviceGetHandleByIndex_v2(u32 index, Handle **to) {
    WITH_LOCK(
        code = gate_at("DeviceGetHandleByIndex_v2", (int)index, -1);
        Device *d = find((int)index, -1);
        if (code == LOST && d) note_loss(handle_of(d));
        if (code == OK && d) *to = handle_of(d);
        if (code == OK && !d) code = INVALID);
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, Handle **to) {
    pthread_mutex_lock(&lock);
    refresh();
    Device *d = find_uuid(uuid);
    int code = gate_at("DeviceGetHandleByUUID", d ? d->index : NONE, d ? d->sub : -1);
    d = find_uuid(uuid);
    if (code == OK && !d) code = NOT_FOUND;
    if (code == OK) *to = handle_of(d);
    pthread_mutex_unlock(&lock);
    return code;
}

DEVICE_CALL(DeviceGetName, (Handle *h, char *to, u32 size), set_text(to, size, d->name))
DEVICE_CALL(DeviceGetUUID, (Handle *h, char *to, u32 size), set_text(to, size, d->uuid))
DEVICE_CALL(DeviceGetSerial, (Handle *h, char *to, u32 size), if (*d->serial) set_text(to, size, d->serial); else code = NOT_SUPPORTED)
DEVICE_CALL(DeviceGetIndex, (Handle *h, u32 *to), *to = d->index)
DEVICE_CALL(DeviceGetMinorNumber, (Handle *h, u32 *to), GIVE(to, d->minor))
DEVICE_CALL(DeviceGetCudaComputeCapability, (Handle *h, int *major, int *minor), *major = d->major_cc; *minor = d->minor_cc)
static void write_pci(const char *bus, Pci *to) {
    memset(to, 0, sizeof *to);
    sscanf(bus, "%x:%x:%x", &to->domain, &to->bus, &to->device);
    snprintf(to->legacy, sizeof to->legacy, "%04X:%02X:%02X.0", to->domain & 0xFFFF, to->bus & 0xFF, to->device & 0xFF);
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.0", to->domain, to->bus & 0xFF, to->device & 0xFF);
    to->id = 0x10DE;
}
DEVICE_CALL(DeviceGetPciInfo_v3, (Handle *h, Pci *to), write_pci(d->bus, to))

static int memory_of(Device *d, MemoryV2 *to) {
    if (d->unified) return NOT_SUPPORTED;
    u64 used = used_of(d), taken = d->reserved + used;
    *to = (MemoryV2){to->version, d->total, d->reserved, taken < d->total ? d->total - taken : 0, used};
    return OK;
}
API int nvmlDeviceGetMemoryInfo_v2(Handle *h, MemoryV2 *to) {
    Device *d;
    WITH_LOCK(if ((code = gate("DeviceGetMemoryInfo_v2", h, &d)) == OK) code = to->version == (40 | 2 << 24) ? memory_of(d, to) : 25);
}
API int nvmlDeviceGetMemoryInfo(Handle *h, Memory *to) {
    Device *d;
    MemoryV2 now = {0};
    WITH_LOCK(if ((code = gate("DeviceGetMemoryInfo", h, &d)) == OK && (code = memory_of(d, &now)) == OK)
                  *to = (Memory){now.total, now.free, now.used + now.reserved});
}

static int list_procs(const char *function, char kind, Handle *h, u32 *count, Process *to) {
    Device *d;
    u32 room = *count;
    WITH_LOCK(if ((code = gate(function, h, &d)) == OK) {
        *count = 0;
        read_procs();
        for (int i = 0; i < n_procs; i++) {
            Proc *p = &procs[i];
            if (&devices[p->device] != d || !strchr(p->kinds, kind) || d->hide > 1) continue;
            if (to && *count < room) to[*count] = (Process){p->pid, d->hide ? ~0ULL : p->said, d->gi, d->ci};
            ++*count;
        }
        if (*count > room) code = TOO_SMALL;
    });
}
#define PROC_CALL(name, kind) API int nvml##name(Handle *h, u32 *count, Process *to) { return list_procs(#name, kind, h, count, to); }
PROC_CALL(DeviceGetComputeRunningProcesses_v3, 'C')
PROC_CALL(DeviceGetGraphicsRunningProcesses_v3, 'G')
PROC_CALL(DeviceGetMPSComputeRunningProcesses_v3, 'M')

DEVICE_CALL(DeviceGetUtilizationRates, (Handle *h, Utilization *to), to->memory = 0; GIVE(&to->gpu, d->util))
DEVICE_CALL(DeviceGetPowerUsage, (Handle *h, u32 *to), GIVE(to, d->power))
DEVICE_CALL(DeviceGetTotalEnergyConsumption, (Handle *h, u64 *to), GIVE(to, d->energy))
DEVICE_CALL(DeviceGetEnforcedPowerLimit, (Handle *h, u32 *to), GIVE(to, d->cap))
DEVICE_CALL(DeviceGetTemperature, (Handle *h, u32 sensor, u32 *to), (void)sensor; GIVE(to, d->temp))
DEVICE_CALL(DeviceGetCurrentClocksEventReasons, (Handle *h, u64 *to), GIVE(to, d->throttle))
DEVICE_CALL(DeviceGetCurrentClocksThrottleReasons, (Handle *h, u64 *to), GIVE(to, d->throttle))
DEVICE_CALL(DeviceGetComputeMode, (Handle *h, u32 *to), GIVE(to, d->compute_mode))
DEVICE_CALL(DeviceGetPersistenceMode, (Handle *h, u32 *to), GIVE(to, d->persistence))
DEVICE_CALL(DeviceGetTotalEccErrors, (Handle *h, u32 type, u32 counter, u64 *to), (void)type; (void)counter; GIVE(to, d->ecc))
DEVICE_CALL(DeviceGetRemappedRows, (Handle *h, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failure),
            GIVE(corrected, d->remap[0]); *uncorrected = d->remap[1]; *pending = d->remap[2]; *failure = d->remap[3])
DEVICE_CALL(DeviceGetNumaNodeId, (Handle *h, u32 *to), GIVE(to, d->numa_memory))
DEVICE_CALL(DeviceGetMemoryAffinity, (Handle *h, u32 words, u64 *to, u32 scope), (void)scope; memset(to, 0, words * 8);
            GIVE(to, d->affinity))

/* --- links --- */

DEVICE_CALL(DeviceGetTopologyCommonAncestor, (Handle *h, Handle *peer, u32 *to), Device *other = peer ? find_uuid(peer->uuid) : NULL;
            if (!other) code = INVALID; else {
                *to = d->numa == other->numa ? 40 : 50;
                for (int i = 0; i < n_topos; i++)
                    if ((topos[i].a == d->index && topos[i].b == other->index) || (topos[i].b == d->index && topos[i].a == other->index))
                        *to = topos[i].level;
            })
static int link_of(Device *d, u32 number, Link **to) {
    int most = -1;
    *to = NULL;
    for (int i = 0; i < n_links; i++) {
        if (links[i].from != d->index) continue;
        most = links[i].number > most ? links[i].number : most;
        if (links[i].number == (int)number) *to = &links[i];
    }
    return most < 0 ? NOT_SUPPORTED : (int)number > most ? INVALID : OK;
}
DEVICE_CALL(DeviceGetNvLinkState, (Handle *h, u32 number, u32 *to), Link *l; if ((code = link_of(d, number, &l)) == OK) *to = l ? l->state : 0)
DEVICE_CALL(DeviceGetNvLinkRemotePciInfo_v2, (Handle *h, u32 number, Pci *to), Link *l; if ((code = link_of(d, number, &l)) == OK) {
                Device *other = l && l->to >= 0 ? find(l->to, -1) : NULL;
                if (!l) code = INVALID; else write_pci(other ? other->bus : "0000:C5:00.0", to);
            })

/* --- MIG --- */

DEVICE_CALL(DeviceGetMigMode, (Handle *h, u32 *now, u32 *pending), GIVE(now, d->mig); *pending = d->mig < 0 ? 0 : d->mig)
DEVICE_CALL(DeviceGetMaxMigDeviceCount, (Handle *h, u32 *to), *to = d->mig < 0 ? 0 : d->max_mig)
DEVICE_CALL(DeviceGetMigDeviceHandleByIndex, (Handle *h, u32 sub, Handle **to), Device *part = find(d->index, (int)sub);
            if (d->mig != 1) code = NOT_SUPPORTED; else if (!part) code = NOT_FOUND; else *to = handle_of(part))
DEVICE_CALL(DeviceGetDeviceHandleFromMigDeviceHandle, (Handle *h, Handle **to), Device *card = find(d->index, -1);
            if (!card) code = NOT_FOUND; else *to = handle_of(card))
DEVICE_CALL(DeviceGetGpuInstanceId, (Handle *h, u32 *to), if (d->sub < 0) code = NOT_SUPPORTED; else *to = d->gi)
DEVICE_CALL(DeviceGetComputeInstanceId, (Handle *h, u32 *to), if (d->sub < 0) code = NOT_SUPPORTED; else *to = d->ci)
DEVICE_CALL(DeviceGetAttributes_v2, (Handle *h, Attributes *to), memset(to, 0, sizeof *to); to->memory_mb = d->total >> 20; if (d->sub < 0) code = NOT_SUPPORTED)

/* --- events --- */

SYSTEM_CALL(EventSetCreate, (EventSet **to), *to = calloc(1, sizeof **to); (*to)->seen = last_serial(); (*to)->epoch = epoch)
SYSTEM_CALL(EventSetFree, (EventSet *set), free(set))
DEVICE_CALL(DeviceGetSupportedEventTypes, (Handle *h, u64 *to), *to = d->sub < 0 ? 0xB : 0)
DEVICE_CALL(DeviceRegisterEvents, (Handle *h, u64 mask, EventSet *set), if (set->count == MAX_DEVICES || mask & ~0xBULL) code = INVALID; else {
                set->watched[set->count].handle = h;
                set->watched[set->count].losses = h->losses;
                set->watched[set->count++].mask = mask;
            })
static int next_event(EventSet *set, Event *to) { /* the oldest unseen one of a watched device */
    Happening *best = NULL;
    for (int i = 0; i < n_happenings; i++) {
        Happening *e = &happenings[i];
        if (e->serial > set->seen && (!best || e->serial < best->serial)) best = e;
    }
    if (!best) return TIMED_OUT;
    set->seen = best->serial;
    Device *d = find(best->device, -1);
    for (int i = 0; d && i < set->count; i++)
        /* a card that was lost since has forgotten who listens */
        if (!strcmp(set->watched[i].handle->uuid, d->uuid) && set->watched[i].mask & best->type &&
            (set->watched[i].losses == set->watched[i].handle->losses || best->serial <= set->watched[i].handle->lost_at)) {
            *to = (Event){set->watched[i].handle, best->type, best->data, best->gi, 0xFFFFFFFFu};
            return OK;
        }
    return next_event(set, to);
}
API int nvmlEventSetWait_v2(EventSet *set, Event *to, u32 timeout_ms) {
    struct timespec slice = {0, 2000000};
    for (u32 waited_ms = 0;; waited_ms += 2) {
        pthread_mutex_lock(&lock);
        int code = gate_at("EventSetWait_v2", NONE, -1);
        if (code == OK) code = set->epoch == epoch ? next_event(set, to) : INVALID;
        pthread_mutex_unlock(&lock);
        if (code != TIMED_OUT || waited_ms >= timeout_ms) return code;
        nanosleep(&slice, NULL);
    }
}
