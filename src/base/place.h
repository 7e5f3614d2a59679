/* place.h: where this code lies on the disk, so that what was installed with it is found wherever that is. */
#ifndef SLC_BASE_PLACE_H
#define SLC_BASE_PLACE_H

#include <stddef.h>

/* The folder of the file (library or program) that holds this code, with its last slash; "" where that is not known. */
void slc_own_folder(char *folder, size_t size);

#endif
