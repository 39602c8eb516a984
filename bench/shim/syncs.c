// Counts the syncs of a process that it is loaded into, and writes the number to the file that SELVEDGE_BENCH_SYNCS names when the process
// ends.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_ulong syncs;

static int counted(const char *name, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    atomic_fetch_add(&syncs, 1);
    return real(file);
}

int fsync(int file) { return counted("fsync", file); }
int fdatasync(int file) { return counted("fdatasync", file); }
int syncfs(int file) { return counted("syncfs", file); }

__attribute__((destructor)) static void tell(void) {
    const char *path = getenv("SELVEDGE_BENCH_SYNCS");
    FILE *out = path ? fopen(path, "w") : NULL;
    if (out) {
        fprintf(out, "%lu\n", atomic_load(&syncs));
        fclose(out);
    }
}
