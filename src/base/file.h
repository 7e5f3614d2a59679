/* file.h: small files that somebody names: read whole, bounded, never waiting as opening a pipe would. */
#ifndef SLC_BASE_FILE_H
#define SLC_BASE_FILE_H

#include "base/memory.h"

#include <sys/types.h>

/*
 * Appends the bytes of the regular file at `path` to *text. False with a sentence in *problem (cut to `size`) that begins
 * with the path: it cannot be read, is no regular file, has one of the `unwanted` mode bits, or more than `limit` bytes.
 */
bool slc_file_read(const char *path, mode_t unwanted, size_t limit, slc_buffer *text, char *problem, size_t size);

/* What kind of file a mode says: "file", "folder", "pipe", "socket" or "device". */
const char *slc_file_kind(mode_t mode);

#endif
