/*
 * doctor.c: what `sluice doctor` asks this machine in C: limits, memory, whether processes can read each other, sockets,
 * libraries and GPUs. Tries each thing as the transports do and leaves nothing behind; what it means is lua/sluice/doctor.lua's.
 */
#include "base/symbol.h"
#include "cli/native.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/available.h"
#include "base/digest.h"
#include "transport/m2n_find.h"
#include "transport/nccl/plugin.h"

static void set_number(lua_State *L, const char *key, double value)
{
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void set_text(lua_State *L, const char *key, const char *text)
{
    lua_pushstring(L, text);
    lua_setfield(L, -2, key);
}

/* A limit that is not there is left out. */
static void set_limit(lua_State *L, const char *key, __rlimit_resource_t what)
{
    struct rlimit limit;
    lua_createtable(L, 0, 2);
    if (getrlimit(what, &limit) == 0) {
        if (limit.rlim_cur != RLIM_INFINITY)
            set_number(L, "soft", (double)limit.rlim_cur);
        if (limit.rlim_max != RLIM_INFINITY)
            set_number(L, "hard", (double)limit.rlim_max);
    }
    lua_setfield(L, -2, key);
}

static void set_system(lua_State *L)
{
    struct utsname name;
    struct statvfs shm;
    if (uname(&name) == 0) {
        set_text(L, "system", name.sysname);
        set_text(L, "release", name.release);
        set_text(L, "architecture", name.machine);
    }
    set_number(L, "processors", (double)sysconf(_SC_NPROCESSORS_ONLN));
    int64_t available = slc_memory_available();
    if (available != INT64_MAX)
        set_number(L, "memory", (double)available);
    if (statvfs("/dev/shm", &shm) == 0)
        set_number(L, "shm", (double)shm.f_bavail * (double)shm.f_frsize);
    set_limit(L, "files", RLIMIT_NOFILE);
    set_limit(L, "locked", RLIMIT_MEMLOCK);
    unsigned long number;
    set_text(L, "openssl", slc_openssl_version(&number));
    set_number(L, "openssl_number", (double)number);
}

/* ---- what the host transport does ---- */

/* "" where it works, else what the kernel said. */
static const char *try_memfd(void)
{
    int fd = memfd_create("sluice-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return strerror(errno);
    const char *said = ftruncate(fd, 4096) == 0 ? "" : strerror(errno);
    close(fd);
    return said;
}

/* Reads the memory of a process that is no child of the one that reads, as two ranks do. The errno, 0 where it works. */
static int try_read(void)
{
    int hold[2], status = 0, said = EIO;
    volatile int mark = 4711;
    if (pipe(hold) != 0)
        return errno;
    pid_t holder = fork();
    if (holder == 0) {
        char byte;
        close(hold[1]);
        _exit(read(hold[0], &byte, 1) < 0); /* until the parent is through */
    }
    close(hold[0]);
    pid_t reader = holder < 0 ? -1 : fork();
    if (reader == 0) {
        int got = 0;
        struct iovec here = { &got, sizeof got }, there = { (void *)(uintptr_t)&mark, sizeof mark };
        ssize_t count = process_vm_readv(holder, &here, 1, &there, 1, 0);
        _exit(count < 0 ? errno : count == sizeof got && got == mark ? 0 : EIO);
    }
    if (reader < 0)
        said = errno;
    else if (waitpid(reader, &status, 0) == reader && WIFEXITED(status))
        said = WEXITSTATUS(status);
    close(hold[1]);
    if (holder > 0)
        waitpid(holder, &status, 0);
    return said;
}

/* "" where a socket can listen on this address and port, else what the kernel said. */
static const char *try_listen(uint32_t address, int port)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = { htonl(address) } };
    const char *said = "";
    if (fd < 0)
        return strerror(errno);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one); /* as rank 0 does */
    if (bind(fd, (struct sockaddr *)&at, sizeof at) != 0 || listen(fd, 1) != 0)
        said = strerror(errno);
    close(fd);
    return said;
}

/* Addresses that other machines may reach: { interface, address }. */
static void set_addresses(lua_State *L)
{
    struct ifaddrs *list = NULL;
    int count = 0;
    lua_newtable(L);
    if (getifaddrs(&list) == 0) {
        for (const struct ifaddrs *at = list; at != NULL; at = at->ifa_next) {
            char text[INET6_ADDRSTRLEN];
            if (at->ifa_addr == NULL || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0 ||
                at->ifa_addr->sa_family != AF_INET)
                continue;
            struct sockaddr_in in;
            memcpy(&in, at->ifa_addr, sizeof in);
            if (inet_ntop(AF_INET, &in.sin_addr, text, sizeof text) == NULL)
                continue;
            lua_createtable(L, 2, 0);
            lua_pushstring(L, at->ifa_name);
            lua_rawseti(L, -2, 1);
            lua_pushstring(L, text);
            lua_rawseti(L, -2, 2);
            lua_rawseti(L, -2, ++count);
        }
        freeifaddrs(list);
    }
    lua_setfield(L, -2, "addresses");
}

/* ---- libraries and GPUs ---- */

/* A function of CUDA's driver by its name, by the driver's own door where it has one; NULL where there is none. */
static void find_cuda(void *library, const char *name, void *function)
{
    int (*ask)(const char *, void **, int, uint64_t, int *) = NULL, status = 0;
    void *symbol = NULL;
    slc_symbol(library, "cuGetProcAddress_v2", &ask);
    if (ask == NULL || ask(name, &symbol, 12000, 0, &status) != 0 || symbol == NULL)
        slc_symbol(library, name, function);
    else
        memcpy(function, &symbol, sizeof symbol);
}

static void set_file(lua_State *L, void *symbol)
{
    Dl_info info;
    if (symbol != NULL && dladdr(symbol, &info) != 0 && info.dli_fname != NULL)
        set_text(L, "file", info.dli_fname);
}

/* Adds how many of its neighbours a GPU reaches, where the driver tells. */
static void set_peers(lua_State *L, void *library, int device, int count)
{
    int (*can)(int *, int, int) = NULL, reached = 0, answer = 0;
    find_cuda(library, "cuDeviceCanAccessPeer", &can);
    for (int other = 0; can != NULL && other < count; other++)
        reached += other != device && can(&answer, device, other) == 0 && answer != 0;
    if (can != NULL)
        set_number(L, "peers", reached);
}

static void push_gpus(lua_State *L, void *library, int count)
{
    int (*get_name)(char *, int, int) = NULL, (*get_bytes)(size_t *, int) = NULL;
    find_cuda(library, "cuDeviceGetName", &get_name);
    find_cuda(library, "cuDeviceTotalMem", &get_bytes);
    lua_newtable(L);
    for (int device = 0; device < count; device++) { /* the driver numbers devices as it hands them out */
        char name[128] = "";
        size_t bytes = 0;
        lua_createtable(L, 0, 3);
        if (get_name != NULL && get_name(name, sizeof name, device) == 0)
            set_text(L, "name", name);
        if (get_bytes != NULL && get_bytes(&bytes, device) == 0)
            set_number(L, "bytes", (double)bytes);
        set_peers(L, library, device, count);
        lua_rawseti(L, -2, device + 1);
    }
    lua_setfield(L, -2, "gpus");
}

/* driver: { file, version, status, gpus }, or { missing } with what the loader said. */
static void set_driver(lua_State *L)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    lua_newtable(L);
    if (library == NULL) {
        set_text(L, "missing", dlerror());
    } else {
        int (*start)(unsigned) = NULL, (*get_version)(int *) = NULL, (*get_count)(int *) = NULL;
        int version = 0, count = 0;
        find_cuda(library, "cuInit", &start);
        find_cuda(library, "cuDriverGetVersion", &get_version);
        find_cuda(library, "cuDeviceGetCount", &get_count);
        set_file(L, dlsym(library, "cuGetProcAddress_v2"));
        int status = start == NULL ? -1 : start(0);
        set_number(L, "status", status);
        if (get_version != NULL && get_version(&version) == 0)
            set_number(L, "version", version);
        if (status == 0 && get_count != NULL && get_count(&count) == 0)
            push_gpus(L, library, count);
    }
    lua_setfield(L, -2, "driver");
}

/* plugin: { cuda, nccl, gpus } with the numbers of its makers, or { missing }. */
static void set_plugin(lua_State *L)
{
    const sluice_cuda_plugin *plugin;
    sluice_error error = SLUICE_ERROR_INIT;
    lua_newtable(L);
    if (slc_cuda_plugin_find(&plugin, &error) != SLUICE_OK) {
        set_text(L, "missing", error.text);
    } else {
        int count = 0;
        set_number(L, "cuda", plugin->versions.cuda);
        set_number(L, "nccl", plugin->versions.nccl);
        if (plugin->gpu->count(&count, &error) == SLUICE_OK)
            set_number(L, "gpus", count);
        else
            set_text(L, "problem", error.text);
    }
    lua_setfield(L, -2, "plugin");
}

/* nccl: the one that a transport would take: { file, version, named }, or { missing, named }. */
static void set_nccl(lua_State *L)
{
    const char *named = getenv("SLUICE_NCCL_LIBRARY");
    slc_nccl_file file;
    sluice_error error = SLUICE_ERROR_INIT;
    lua_newtable(L);
    if (named != NULL)
        set_text(L, "named", named);
    if (slc_nccl_find(NULL, &file, &error) != SLUICE_OK) {
        set_text(L, "missing", error.text);
    } else {
        set_text(L, "file", file.path);
        set_number(L, "version", file.version);
    }
    lua_setfield(L, -2, "nccl");
}

/*
 * m2n: the one that transport m2n would take: { found, named }, or { missing, named }. In a process of its own: it may bring an
 * NCCL along that transport nccl would not take.
 */
static void set_m2n(lua_State *L)
{
    const char *named = getenv("SLUICE_M2N_LIBRARY");
    char text[SLUICE_ERROR_TEXT + 1] = "";
    int ends[2], status = 0;
    size_t got = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        slc_m2n_file file;
        sluice_error error = SLUICE_ERROR_INIT;
        bool good = slc_m2n_find(NULL, &file, &error) == SLUICE_OK;
        char version[32];
        slc_nccl_version_text(file.nccl.version, version, sizeof version);
        int length = good ? snprintf(text, sizeof text, "%s, with NCCL %s, %s", file.path, version, file.nccl.path)
                          : snprintf(text, sizeof text, "%s", error.text);
        _exit(write(ends[1], text, (size_t)length) == length && good ? 0 : 1);
    }
    close(ends[1]);
    for (ssize_t more; got < sizeof text - 1 && (more = read(ends[0], text + got, sizeof text - 1 - got)) > 0;)
        got += (size_t)more;
    close(ends[0]);
    text[got] = '\0';
    bool good = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    lua_newtable(L);
    if (named != NULL)
        set_text(L, "named", named);
    set_text(L, good ? "found" : "missing", got > 0 ? text : "looking for it ended the process that did");
    lua_setfield(L, -2, "m2n");
}

/* folder(path) -> the names in it, without those that begin with a dot; nothing where it cannot be read */
int slc_native_folder(lua_State *L)
{
    DIR *folder = opendir(luaL_checkstring(L, 1));
    int count = 0;
    if (folder == NULL)
        return 0;
    lua_newtable(L);
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        lua_pushstring(L, entry->d_name);
        lua_rawseti(L, -2, ++count);
    }
    closedir(folder);
    return 1;
}

/* facts(port or nil) -> what this machine has, as lua/sluice/doctor.lua reads it */
int slc_native_facts(lua_State *L)
{
    int port = luaL_optint(L, 1, 0);
    lua_newtable(L);
    set_m2n(L); /* before this process opens anything */
    set_system(L);
    set_text(L, "memfd", try_memfd());
    int said = try_read();
    set_text(L, "read", said == 0 ? "" : strerror(said));
    set_text(L, "loopback", try_listen(INADDR_LOOPBACK, 0));
    if (port > 0)
        set_text(L, "listen", try_listen(INADDR_ANY, port));
    set_addresses(L);
    set_driver(L);
    set_plugin(L);
    set_nccl(L);
    return 1;
}
