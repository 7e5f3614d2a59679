/*
 * host_scene.h: what host_driver.c and host_bench.c move: lists of tensors, each cut over the trainers along one dim and
 * over the workers along another, with their programs and the values of their elements.
 */
#ifndef SPEC_HOST_SCENE_H
#define SPEC_HOST_SCENE_H

#include "plan/program.h"

enum { MAX_RANKS = 64, MAX_DIMS = 4 };

typedef enum place { IN_HEAP, IN_REGION } place;

/* Dims are named by what cuts them: -1 means no cut (every rank of that side holds the whole extent). */
typedef struct tensor {
    int ndim;
    int64_t shape[MAX_DIMS];
    int64_t element;      /* bytes */
    int cut_source, cut_live;
    int order[MAX_DIMS];  /* live dim i shows tensor dim order[i] */
    int64_t pad;          /* extra elements at the high end of the live tensor's last dim */
    bool fill;            /* the padding is cleared by the transport; else it must stay as it was */
    bool full;            /* to staging */
    place where;
} tensor;

typedef struct scene {
    int32_t trainers, workers;
    size_t count;
    tensor *tensor;
} scene;

#define SHAPE(...) ((const int64_t[]){ __VA_ARGS__ })

/* A part of a tensor. */
typedef struct rect {
    int64_t low[MAX_DIMS], high[MAX_DIMS];
} rect;

void die(const char *what);
void *need(void *memory); /* dies on NULL */
uint64_t mix(uint64_t x);

scene make_scene(const char *name, uint64_t seed); /* dies on an unknown name */
tensor *add(scene *s, int ndim, const int64_t *shape, int64_t element, int cut_source, int cut_live);

/* A plan with the tensors' names t0, t1, ..., for messages; nothing else in it is used. */
slc_plan *make_plan(const scene *s);
slc_program make_program(const scene *s, int32_t rank);

/* What the i-th of n ranks of a side holds under that side's cut. */
rect held(const tensor *t, int cut, int32_t n, int32_t i);
int64_t elements(const tensor *t, const rect *r);
void row_major(const tensor *t, const rect *r, int64_t stride[MAX_DIMS]);
/* Byte strides, by tensor dim, of what a worker holds: its dims in `order`, the last one padded; *bytes is the whole. */
void live_strides(const tensor *t, const rect *r, int64_t stride[MAX_DIMS], int64_t *bytes);

/* Writes the value of every element of a rect with the given strides, or compares and returns how many differ. */
int64_t each_element(const scene *s, size_t param, int batch, const rect *r, const int64_t *stride, unsigned char *base, bool compare);

enum { UNTOUCHED = 0xa5 };

/* Bytes of the live tensor that no element covers and that are not as they should: UNTOUCHED, or cleared where they are filled. */
int64_t wrong_padding(const scene *s, size_t param, const rect *r, const unsigned char *base);

/* bench: host_bench.c */
int bench(int argc, char **argv);

#endif
