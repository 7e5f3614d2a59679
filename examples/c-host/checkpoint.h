/* checkpoint.h: a safetensors file, mapped. Every offset and shape in it is checked, since a file may be cut or made up. */
#ifndef CHECKPOINT_H
#define CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

enum { MOST_DIMS = 4 };

typedef struct tensor {
    char name[160];
    const char *dtype; /* as Sluice calls it: "float32", "int64" */
    uint32_t ndim;
    int64_t shape[MOST_DIMS];
    const unsigned char *data;
    size_t bytes;
} tensor;

typedef struct checkpoint {
    unsigned char *map;
    size_t size, count;
    tensor *tensor; /* in the order of their bytes */
} checkpoint;

/* Ends the program with a message where that is no safetensors file of float32 and int64. */
checkpoint checkpoint_open(const char *path);
/* NULL where there is none of that name. */
const tensor *checkpoint_find(const checkpoint *checkpoint, const char *name);
void checkpoint_close(checkpoint *checkpoint);

#endif
