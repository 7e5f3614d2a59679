/*
 * memory.h: every heap block of the library is asked for here, so that a spec can make the n-th request fail, and every
 * size that came from outside goes through checked arithmetic. An arena gives many small blocks that die together.
 */
#ifndef SLC_BASE_MEMORY_H
#define SLC_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As malloc, calloc, realloc and free; NULL when there is no memory. slc_allocate(0) gives a block of its own. */
void *slc_allocate(size_t bytes);
void *slc_allocate_zeroed(size_t count, size_t size);
void *slc_reallocate(void *block, size_t bytes);
void slc_release(void *block);
/* slc_release of a block whose first bytes may be a secret, such as the id of a communicator. */
void slc_release_wiped(void *block, size_t bytes);
char *slc_duplicate(const char *text);

/*
 * Room for an item behind `count` of them in an array that grows by doubling, from `first` items on: `array` is a pointer to the
 * pointer to the items, of `size` bytes each, `capacity` says how many there is room for. False when there is no memory; then all is
 * as it was.
 */
bool slc_grow(void *array, size_t *capacity, size_t count, size_t first, size_t size);
#define SLC_ROOM(array, capacity, count, first) slc_grow((void *)&(array), &(capacity), (count), (first), sizeof *(array))

/*
 * Zeroed pages of their own for secrets: left out of core dumps, kept out of swap where the system allows that. NULL when
 * there is no memory. Released with the same size, wiped first; NULL is allowed.
 */
void *slc_secret_allocate(size_t bytes);
void slc_secret_release(void *secret, size_t bytes);

/*
 * For specs: the n-th request from now on fails (1 is the next), and every one after it too with `sticky`; 0 ends that.
 * Returns the requests counted since the last call.
 */
uint64_t slc_fail_allocation(uint64_t nth, bool sticky);

/* *out = a op b; false when that is negative or does not fit. */
static inline bool slc_multiply(int64_t a, int64_t b, int64_t *out) { return !__builtin_mul_overflow(a, b, out) && *out >= 0; }
static inline bool slc_add(int64_t a, int64_t b, int64_t *out) { return !__builtin_add_overflow(a, b, out) && *out >= 0; }
static inline bool slc_multiply_size(size_t a, size_t b, size_t *out) { return !__builtin_mul_overflow(a, b, out); }

/* Blocks are aligned to 16 bytes and zeroed, live until slc_arena_clear. Initialise with {0}. Not for two threads at once. */
typedef struct slc_arena {
    struct slc_arena_block *blocks;
    size_t bytes; /* given out so far */
} slc_arena;

void *slc_arena_take(slc_arena *arena, size_t count, size_t size); /* NULL when there is no memory or count * size does not fit */
char *slc_arena_text(slc_arena *arena, const char *text, size_t length); /* a terminated copy */
void slc_arena_clear(slc_arena *arena);

/*
 * A growing array of bytes; initialise with {0}, end with slc_buffer_clear. What it held may be a secret and is wiped wherever it
 * lets go of memory. After a failed append `failed` stays set and
 * appends do nothing, so that a writer checks once at its end.
 */
typedef struct slc_buffer {
    unsigned char *data;
    size_t length, capacity;
    bool failed;
} slc_buffer;

/* Each appends one thing; false once anything failed. */
bool slc_buffer_append(slc_buffer *buffer, const void *bytes, size_t length);
bool slc_buffer_text(slc_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool slc_buffer_u8(slc_buffer *buffer, uint8_t value);
bool slc_buffer_u32(slc_buffer *buffer, uint32_t value); /* little endian, as all of these */
bool slc_buffer_u64(slc_buffer *buffer, uint64_t value);
bool slc_buffer_string(slc_buffer *buffer, const char *text); /* u32 length, then the bytes; NULL is written as "" */
void slc_buffer_clear(slc_buffer *buffer);

/* Reads what slc_buffer_* wrote. A read past the end sets `failed` and gives 0, "" or NULL, so that a reader checks once at its end. */
typedef struct slc_reader {
    const unsigned char *data;
    size_t length, offset;
    bool failed;
} slc_reader;

/* Each takes the next thing. */
uint8_t slc_read_u8(slc_reader *reader);
uint32_t slc_read_u32(slc_reader *reader);
uint64_t slc_read_u64(slc_reader *reader);
const unsigned char *slc_read_bytes(slc_reader *reader, size_t length); /* points into the data */
/* Copied into the arena; a string longer than `longest` or holding a zero byte is a failure. */
const char *slc_read_string(slc_reader *reader, slc_arena *arena, size_t longest);
static inline size_t slc_reader_left(const slc_reader *reader) { return reader->length - reader->offset; }

#endif
