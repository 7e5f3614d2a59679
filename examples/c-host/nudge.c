/* nudge.c: a second checkpoint to update to: as the first, each weight moved a little, as a step of training would. */
#include "checkpoint.h"
#include "say.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In [-1, 1], from a number. */
static float noise(uint64_t number)
{
    number = (number + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    number = (number ^ (number >> 27)) * 0x94D049BB133111EBu;
    return (float)(int32_t)(number >> 32) / 2147483648.0f;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        die("usage: embed-nudge IN.safetensors OUT.safetensors");
    checkpoint file = checkpoint_open(argv[1]);
    unsigned char *copy = must_allocate(file.size, 1);
    memcpy(copy, file.map, file.size);
    for (size_t i = 0; i < file.count; i++) {
        if (strcmp(file.tensor[i].dtype, "float32") != 0)
            continue;
        unsigned char *at = copy + (file.tensor[i].data - file.map);
        for (size_t j = 0; j < file.tensor[i].bytes / sizeof(float); j++) {
            float value;
            memcpy(&value, at + j * sizeof value, sizeof value);
            value *= 1 + 0.05f * noise((uint64_t)i << 32 | j);
            memcpy(at + j * sizeof value, &value, sizeof value);
        }
    }
    FILE *out = fopen(argv[2], "wb");
    if (out == NULL || fwrite(copy, 1, file.size, out) != file.size || fclose(out) != 0)
        die("%s: %s", argv[2], strerror(errno));
    free(copy);
    checkpoint_close(&file);
    return 0;
}
