/* memory.c: the one door to the heap, arenas, byte buffers. Owns the fault counter that specs set, nothing else. */
#include "base/memory.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the door ---- */

/* Process-wide on purpose: a spec counts every request of every engine and thread. Zero, and so idle, in every real run. */
static atomic_uint_least64_t requests, failing_request;
static atomic_bool failing_is_sticky;

static bool must_fail(void)
{
    uint64_t failing = atomic_load_explicit(&failing_request, memory_order_relaxed);
    uint64_t number = atomic_fetch_add_explicit(&requests, 1, memory_order_relaxed) + 1;
    if (failing == 0)
        return false;
    return number == failing || (number > failing && atomic_load_explicit(&failing_is_sticky, memory_order_relaxed));
}

uint64_t slc_fail_allocation(uint64_t nth, bool sticky)
{
    uint64_t counted = atomic_exchange(&requests, 0);
    atomic_store(&failing_is_sticky, sticky);
    atomic_store(&failing_request, nth);
    return counted;
}

void *slc_allocate(size_t bytes)
{
    return must_fail() ? NULL : malloc(bytes == 0 ? 1 : bytes);
}

void *slc_allocate_zeroed(size_t count, size_t size)
{
    if (must_fail())
        return NULL;
    return count == 0 || size == 0 ? calloc(1, 1) : calloc(count, size);
}

void *slc_reallocate(void *block, size_t bytes)
{
    return must_fail() ? NULL : realloc(block, bytes == 0 ? 1 : bytes);
}

bool slc_grow(void *array, size_t *capacity, size_t count, size_t first, size_t size)
{
    void *block;
    size_t wanted = *capacity == 0 ? first : *capacity, bytes;
    if (count < *capacity)
        return true;
    while (wanted <= count)
        if (!slc_multiply_size(wanted, 2, &wanted))
            return false;
    if (!slc_multiply_size(wanted, size, &bytes))
        return false;
    memcpy(&block, array, sizeof block);
    block = slc_reallocate(block, bytes);
    if (block == NULL)
        return false;
    memcpy(array, &block, sizeof block);
    *capacity = wanted;
    return true;
}

void slc_release(void *block)
{
    free(block);
}

char *slc_duplicate(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = slc_allocate(bytes);
    if (copy != NULL)
        memcpy(copy, text, bytes);
    return copy;
}

/* ---- secrets ---- */

void slc_release_wiped(void *block, size_t bytes)
{
    if (block != NULL)
        explicit_bzero(block, bytes);
    slc_release(block);
}

void *slc_secret_allocate(size_t bytes)
{
    void *pages = must_fail() ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return NULL;
    if (madvise(pages, bytes, MADV_DONTDUMP) != 0) {
        munmap(pages, bytes);
        return NULL;
    }
    (void)mlock(pages, bytes); /* refused where RLIMIT_MEMLOCK is spent; the secret then may reach the swap, as everything else */
    return pages;
}

void slc_secret_release(void *secret, size_t bytes)
{
    if (secret == NULL)
        return;
    explicit_bzero(secret, bytes);
    munmap(secret, bytes);
}

/* ---- arenas ---- */

enum { ALIGNMENT = 16, SMALLEST_BLOCK = 4096, LARGEST_STEP = 1 << 20 };

struct slc_arena_block {
    struct slc_arena_block *next;
    size_t used, capacity;
    _Alignas(16) unsigned char bytes[];
};

void *slc_arena_take(slc_arena *arena, size_t count, size_t size)
{
    size_t wanted;
    if (!slc_multiply_size(count, size, &wanted) || wanted > SIZE_MAX / 2)
        return NULL;
    wanted = (wanted + (ALIGNMENT - 1)) & ~(size_t)(ALIGNMENT - 1);
    if (wanted == 0)
        wanted = ALIGNMENT;
    struct slc_arena_block *block = arena->blocks;
    if (block == NULL || block->capacity - block->used < wanted) {
        /* Blocks grow with the arena, so that a small plan is small and a large one takes few requests. */
        size_t capacity = arena->bytes < SMALLEST_BLOCK ? SMALLEST_BLOCK : arena->bytes > LARGEST_STEP ? LARGEST_STEP : arena->bytes;
        if (capacity < wanted)
            capacity = wanted;
        block = slc_allocate_zeroed(1, sizeof *block + capacity);
        if (block == NULL)
            return NULL;
        block->capacity = capacity;
        block->next = arena->blocks;
        arena->blocks = block;
    }
    void *taken = block->bytes + block->used;
    block->used += wanted;
    arena->bytes += wanted;
    return taken;
}

char *slc_arena_text(slc_arena *arena, const char *text, size_t length)
{
    if (length == SIZE_MAX)
        return NULL;
    char *copy = slc_arena_take(arena, length + 1, 1);
    if (copy != NULL && length > 0)
        memcpy(copy, text, length);
    return copy;
}

void slc_arena_clear(slc_arena *arena)
{
    for (struct slc_arena_block *block = arena->blocks, *next; block != NULL; block = next) {
        next = block->next;
        slc_release(block);
    }
    *arena = (slc_arena){ 0 };
}

/* ---- buffers ---- */

static bool reserve(slc_buffer *buffer, size_t more)
{
    if (buffer->failed || more > SIZE_MAX / 2 - buffer->length)
        return !(buffer->failed = true);
    if (buffer->capacity - buffer->length >= more)
        return true;
    size_t capacity = buffer->capacity < 128 ? 256 : buffer->capacity * 2;
    if (capacity < buffer->length + more)
        capacity = buffer->length + more;
    unsigned char *data = slc_allocate(capacity);
    if (data == NULL)
        return !(buffer->failed = true);
    if (buffer->length > 0)
        memcpy(data, buffer->data, buffer->length);
    slc_release_wiped(buffer->data, buffer->length);
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

bool slc_buffer_append(slc_buffer *buffer, const void *bytes, size_t length)
{
    if (!reserve(buffer, length))
        return false;
    if (length > 0)
        memcpy(buffer->data + buffer->length, bytes, length);
    buffer->length += length;
    return true;
}

bool slc_buffer_text(slc_buffer *buffer, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    bool good = length >= 0 && reserve(buffer, (size_t)length + 1);
    if (good) {
        vsnprintf((char *)buffer->data + buffer->length, (size_t)length + 1, format, again);
        buffer->length += (size_t)length; /* the terminator stays behind the end, for callers that print the data */
    } else {
        buffer->failed = true;
    }
    va_end(again);
    va_end(arguments);
    return good;
}

bool slc_buffer_u8(slc_buffer *buffer, uint8_t value)
{
    return slc_buffer_append(buffer, &value, 1);
}

static bool append_little_endian(slc_buffer *buffer, uint64_t value, size_t bytes)
{
    unsigned char encoded[8];
    for (size_t i = 0; i < bytes; i++)
        encoded[i] = (unsigned char)(value >> (8 * i));
    return slc_buffer_append(buffer, encoded, bytes);
}

bool slc_buffer_u32(slc_buffer *buffer, uint32_t value)
{
    return append_little_endian(buffer, value, 4);
}

bool slc_buffer_u64(slc_buffer *buffer, uint64_t value)
{
    return append_little_endian(buffer, value, 8);
}

bool slc_buffer_string(slc_buffer *buffer, const char *text)
{
    size_t length = text == NULL ? 0 : strlen(text);
    if (length > UINT32_MAX)
        return !(buffer->failed = true);
    return slc_buffer_u32(buffer, (uint32_t)length) && slc_buffer_append(buffer, text, length);
}

void slc_buffer_clear(slc_buffer *buffer)
{
    slc_release_wiped(buffer->data, buffer->length);
    *buffer = (slc_buffer){ 0 };
}

/* ---- readers ---- */

const unsigned char *slc_read_bytes(slc_reader *reader, size_t length)
{
    if (reader->failed || slc_reader_left(reader) < length) {
        reader->failed = true;
        return NULL;
    }
    const unsigned char *bytes = reader->data + reader->offset;
    reader->offset += length;
    return bytes;
}

static uint64_t read_little_endian(slc_reader *reader, size_t bytes)
{
    const unsigned char *encoded = slc_read_bytes(reader, bytes);
    uint64_t value = 0;
    for (size_t i = 0; encoded != NULL && i < bytes; i++)
        value |= (uint64_t)encoded[i] << (8 * i);
    return value;
}

uint8_t slc_read_u8(slc_reader *reader)
{
    return (uint8_t)read_little_endian(reader, 1);
}

uint32_t slc_read_u32(slc_reader *reader)
{
    return (uint32_t)read_little_endian(reader, 4);
}

uint64_t slc_read_u64(slc_reader *reader)
{
    return read_little_endian(reader, 8);
}

const char *slc_read_string(slc_reader *reader, slc_arena *arena, size_t longest)
{
    size_t length = slc_read_u32(reader);
    const unsigned char *bytes = length > longest ? NULL : slc_read_bytes(reader, length);
    const char *text = bytes == NULL || memchr(bytes, 0, length) != NULL ? NULL : slc_arena_text(arena, (const char *)bytes, length);
    if (text == NULL) {
        reader->failed = true;
        return "";
    }
    return text;
}
